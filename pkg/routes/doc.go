// Package routes is the compiler. In: a MetaRouter, to judge it alone; or one service port as a client
// sees it. Out: the faults of the MetaRouter; or a Plan (what the rules mean, free of any protocol), its
// Problems, and the Plan's spelling as a resource of the type that a proxy asked for.
// Not here: any state, clock, logger, metric or network. Its arguments are read-only.
package routes
