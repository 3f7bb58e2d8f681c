package mesh

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
	"github.com/metards/metards/pkg/problem"
)

// Kind is one of the kinds of objects that tables are made of.
type Kind string

// The kinds.
const (
	KindServiceEntry    Kind = "ServiceEntry"
	KindDestinationRule Kind = "DestinationRule"
	KindMetaRouter      Kind = "MetaRouter"
)

// KindMeshConfig is a Feed without objects: the mesh-wide values, which arrive by SetSettings.
const KindMeshConfig Kind = "MeshConfig"

// Kinds lists all kinds of objects.
func Kinds() []Kind { return []Kind{KindServiceEntry, KindDestinationRule, KindMetaRouter} }

// Source is where objects come from. Of one object from two sources the smaller Source counts.
type Source int

// The sources, the one that counts most first.
const (
	Kubernetes Source = iota
	MCP
	Directory
	numSources
)

// String is the source's name for people.
func (s Source) String() string {
	return [...]string{"the Kubernetes API", "MCP", "the directory"}[s]
}

// Key identifies an object.
type Key struct {
	Kind      Kind
	Namespace string
	Name      string
}

// Ref is the key as Problems carry it.
func (k Key) Ref() problem.Object {
	return problem.Object{Kind: string(k.Kind), Namespace: k.Namespace, Name: k.Name}
}

// RevisionLabel names the control plane that an object is for.
const RevisionLabel = "istio.io/rev"

// OfRevision reports whether an object whose RevisionLabel has a value, empty if it has none, is for a revision:
// objects without the label are for all, and an empty revision takes in all.
func OfRevision(label, revision string) bool {
	return revision == "" || label == "" || label == revision
}

// Object is one version of an object, as a source delivered it. It is read-only once applied.
type Object struct {
	Key
	Created time.Time // zero counts as oldest
	File    string    // where it was written, if in a file
	Line    int
	// Spec is nil if the object could not be decoded; Faults then say why, and the previous version
	// stays in force.
	Spec   Spec
	Faults []problem.Problem
	// Locate gives the line of a field path, for Problems. It is called in Apply and dropped there. May be nil.
	Locate func(path string) int
}

// SameContent reports whether two versions of an object are alike but for where they are written.
func (o *Object) SameContent(p *Object) bool {
	return o != nil && p != nil && o.Spec != nil && p.Spec != nil && o.Created.Equal(p.Created) && o.Spec.equal(p.Spec)
}

// counts reports whether the object can change a table at all.
func (o *Object) counts() bool {
	switch spec := o.Spec.(type) {
	case *DestinationRule:
		return !spec.Selected
	case *MetaRouter:
		// With e.g. rate limits alone it is no candidate, so that it cannot hide one that has routes.
		return len(spec.GetRoutes()) > 0
	}
	return true
}

// Spec is the reduced content of an object: *ServiceEntry, *DestinationRule or *MetaRouter.
type Spec interface {
	equal(Spec) bool
}

// ServiceEntry declares ports of hosts. Kubernetes Services arrive in this form too.
type ServiceEntry struct {
	Hosts    []string
	Ports    []Port
	ExportTo []string
}

func (s *ServiceEntry) equal(o Spec) bool {
	t, ok := o.(*ServiceEntry)
	return ok && slices.Equal(s.Hosts, t.Hosts) && slices.Equal(s.Ports, t.Ports) && slices.Equal(s.ExportTo, t.ExportTo)
}

// DestinationRule tells which hash key the clusters of a host have.
type DestinationRule struct {
	Host     string
	ExportTo []string
	Policy   *Policy // nil if the rule has no traffic policy
	Subsets  []Subset
	// Selected is set when the rule has a workload selector: its effect depends on labels, so it is left out.
	Selected bool
}

func (d *DestinationRule) equal(o Spec) bool {
	t, ok := o.(*DestinationRule)
	return ok && d.Host == t.Host && d.Selected == t.Selected && slices.Equal(d.ExportTo, t.ExportTo) &&
		d.Policy.equal(t.Policy) && slices.EqualFunc(d.Subsets, t.Subsets, Subset.equal)
}

// Policy is the part of a traffic policy that decides the hash key.
type Policy struct {
	Balancer *Balancer // nil if the policy does not say
	Ports    []PortPolicy
}

func (p *Policy) equal(o *Policy) bool {
	if p == nil || o == nil {
		return p == o
	}
	return p.Balancer.equal(o.Balancer) && slices.EqualFunc(p.Ports, o.Ports, func(a, b PortPolicy) bool {
		return a.Number == b.Number && a.Balancer.equal(b.Balancer)
	})
}

// PortPolicy replaces the policy around it for one port.
type PortPolicy struct {
	Number   uint32
	Balancer *Balancer
}

// Balancer is a load balancer setting. HashHeader is empty for all but consistent hashing by header.
type Balancer struct {
	HashHeader string
}

func (b *Balancer) equal(o *Balancer) bool {
	return b == o || b != nil && o != nil && *b == *o
}

// Subset is a named subset with its own policy, if it has one.
type Subset struct {
	Name   string
	Policy *Policy
}

func (s Subset) equal(o Subset) bool { return s.Name == o.Name && s.Policy.equal(o.Policy) }

// MetaRouter wraps the API's message, which has nothing to leave out.
type MetaRouter struct {
	*v1alpha1.MetaRouter
}

func (m *MetaRouter) equal(o Spec) bool {
	t, ok := o.(*MetaRouter)
	return ok && proto.Equal(m.MetaRouter, t.MetaRouter)
}

// olderFirst orders by creation time, then name, then namespace.
func olderFirst(a, b *Object) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace))
}

// olderRouterFirst orders by creation time, then namespace, then name.
func olderRouterFirst(a, b *Object) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
