// Package meshca asks a mesh's CA for a certificate. In: the CA's address, the files of the mesh's roots
// and of our service account token; out: per request, a certificate with a fresh key, checked against what
// was asked for, and the roots that came with it, or an Error that says what to do. It keeps nothing
// between requests, decides nothing about when to ask again, and never sees a CA's key.
package meshca
