// Package stock is what a test with a stock Envoy needs: the Envoy as a process with its bootstrap and its admin
// port, metards as its server, certificates for both, upstreams that say who they are, a client that counts the
// answers, and a report of what was expected and seen. In: the binaries that make built. Out: running processes on
// loopback, each ended by its id. Not here: what a table means (pkg/routes tells) and any assertion about it.
package stock
