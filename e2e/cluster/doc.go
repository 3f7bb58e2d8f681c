// Package cluster starts the real components on loopback: etcd, kube-apiserver, istiod and metards. In:
// their binaries, built by make. Out: running processes, each ended by its id, also when a test fails, and
// clients for them. Not here: assertions.
package cluster
