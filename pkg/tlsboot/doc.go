// Package tlsboot says who we are and whom we trust: per handshake, the server's certificate and the
// roots that client certificates must chain to. In: PEM files that may change at any time, or the answers
// of the mesh's CA to our CSRs (pkg/meshca); out: a *tls.Config whose certificate and Trust follow them,
// and the Identity that a client's certificate states. It decides nothing about what an Identity may do,
// opens no listener, and never reads a CA's key; the only key it signs with is that of the throw-away DevCA.
package tlsboot
