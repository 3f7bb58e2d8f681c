// Package envoygate puts tables through `envoy --mode validate` before they are served.
// In: the tables that the cache keeps back, and the path of an Envoy. Out: a verdict on each, and Problems and
// metrics about the binary itself. A verdict is Envoy's own: where it could not be asked there is none, and the
// table waits.
// Not here: what is served meanwhile, and who waits (package cachemgr), and the network: the binary reads its
// configuration from a pipe, binds no port and writes no file.
package envoygate
