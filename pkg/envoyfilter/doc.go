// Package envoyfilter writes the EnvoyFilters that make proxies ask us for tables. In: ServiceEntries and
// Kubernetes Services, whole, since listeners are named by addresses, which the mesh does not keep. Out: EnvoyFilters
// in a fixed order, and a Problem for each service that cannot have one, with what to do.
// Not here: reading a directory or the API server (cmd/metards), and what is in the tables (pkg/routes).
package envoyfilter
