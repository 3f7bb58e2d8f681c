// Package rdsserver speaks xDS with the proxies: RDS and ADS, state of the world and delta, as four
// encodings of one stream loop. In: streams of proxies that present a mesh certificate. Out: one Table at
// a time for each stream and type, the newest, and only when its bytes differ from what was sent last; and on
// ADS static resources.
// Not here: compiling Tables and knowing when they change (package cachemgr), and what is next of static
// resources (package staticxds).
package rdsserver
