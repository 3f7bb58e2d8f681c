// Package cachemgr holds what proxies are subscribed to and the Tables for it.
// In: subscriptions of streams, and from the store the hosts that changed. Out: Tables, compiled only
// while somebody is subscribed and shared between Views that see the same inputs; a stream is woken when
// one of its Tables has other bytes; and facts about what each proxy was sent, accepted and rejected.
// Gated, it keeps each new Table back until whoever judges them has passed it; meanwhile the one before is served.
// Not here: the network, and what a table must be (package routes).
package cachemgr
