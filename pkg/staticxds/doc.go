// Package staticxds serves clusters, endpoints, listeners and routes that a file has in Envoy's own form.
// In: the file, and what streams on ADS ask for. Out: for each stream the next response: what changed of one
// type, in the order that lets traffic go on, and removals last; and Problems of the file.
// Not here: the wire (package rdsserver), and tables that are compiled (package cachemgr).
package staticxds
