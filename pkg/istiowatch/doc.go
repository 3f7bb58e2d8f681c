// Package istiowatch reads services, destination rules and the mesh's own settings from istiod.
// In: full lists over MCP-over-xDS, sent anew on every push. Out: batches of what differs in the fields that
// can change a table, the mesh's settings, and Problems; an outage, a refusal, an item that cannot be decoded
// or a list that shrinks all at once never takes anything away by itself.
// Not here: what an object means to a table (pkg/mesh and pkg/routes), and which source wins.
package istiowatch
