package routes

import (
	"strconv"
	"strings"

	"github.com/metards/metards/pkg/problem"
)

// Plan is what the rules for one service port mean to one View, free of any protocol.
type Plan struct {
	Service     string // host, as the ServiceEntry spells it
	Port        uint32 // the port that destinations without one mean
	Protocol    string // from the port's name, as in metaprotocol
	Application string // from the port's name, as in dubbo
	// MetaRouter is where the routes come from, the zero Object for the default route.
	MetaRouter problem.Object
	// Routes are in order: the first that matches decides. There is at least one.
	Routes []Route
}

// Route sends the requests that meet all conditions to its destinations.
type Route struct {
	Name         string
	Conditions   []Condition   // by attribute; none means every request
	Destinations []Destination // at least one; with several, weights count and sum to 1 … 2³²−1
	Mirror       *Mirror       // nil if requests are not mirrored
	HashKeys     []string      // attributes that choose the endpoint, each once
	Requests     []KeyValue    // mutations of requests, in order
	Responses    []KeyValue    // mutations of responses, in order
}

// Match is how a Condition compares.
type Match string

// The ways to compare.
const (
	Present Match = "present"
	Exact   Match = "exact"
	Prefix  Match = "prefix"
	Regex   Match = "regex" // RE2, of the whole value
)

// Condition is a demand on one attribute of a request.
type Condition struct {
	Attribute string
	Match     Match
	Value     string // empty for Present
}

// Destination is a subset of a service port.
type Destination struct {
	Host   string
	Subset string
	Port   uint32
	Weight uint32 // without meaning for a single destination
}

// Cluster is Istio's name of the destination's cluster.
func (d Destination) Cluster() string {
	var b strings.Builder
	b.Grow(len("outbound|65535||") + len(d.Subset) + len(d.Host))
	b.WriteString("outbound|")
	b.WriteString(strconv.FormatUint(uint64(d.Port), 10))
	b.WriteByte('|')
	b.WriteString(d.Subset)
	b.WriteByte('|')
	b.WriteString(d.Host)
	return b.String()
}

// Mirror is a destination that gets a copy of a share of the requests.
type Mirror struct {
	Destination
	Millionths uint32 // 1 to 1,000,000
}

// KeyValue sets a key to a value.
type KeyValue struct{ Key, Value string }
