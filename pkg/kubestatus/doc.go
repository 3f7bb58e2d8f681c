// Package kubestatus writes the status of MetaRouters. In: what the API server has, as pkg/kubewatch saw it, and
// the facts of this replica. Out: each replica's report in the object's status, and from the holder of the Lease
// the conditions that sum them up and the last valid spec of a refused object. It is never waited for, writes
// seldom, and whatever fails here touches no table.
// Not here: reading objects, judging them, and what proxies do.
package kubestatus

import (
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// Facts are what this replica knows of one MetaRouter.
type Facts struct {
	// Problems are those of the object: why it was refused, what it conflicts with, warnings.
	Problems []problem.Problem
	// Pending is set while a change of the object may not have reached the tables. The rest is then of before, and
	// facts are read again soon, signalled or not.
	Pending bool
	// Proxies is how many proxies are subscribed to a table that the object in force decides; of those
	// UpToDate have accepted its latest version and Rejected have refused it.
	Proxies, UpToDate, Rejected int
	// FirstError is the error of the first of those that refused, as "node: error".
	FirstError string
	// LastValid is the version in force of an object whose latest version was refused, else nil.
	LastValid *mesh.Object
}

// Source knows the facts. Its methods may be called at any time.
type Source interface {
	// Facts returns those of all MetaRouters of the API server, not older than what the Sink of the API server's
	// objects was given last. The caller keeps the map.
	Facts() map[mesh.Key]Facts
	// Changed is signalled when Facts may differ.
	Changed() <-chan struct{}
}
