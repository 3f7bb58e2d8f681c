// Package mesh holds what metards knows of the mesh: services, destination rules and MetaRouters.
// In: objects from the sources, each reduced to the fields that can change a table. Out: lookups as one
// client namespace sees them, and on each change the hosts whose tables may differ.
// Not here: reading files or networks, judging a MetaRouter (the judge is handed in), compiling.
package mesh
