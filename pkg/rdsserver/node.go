package rdsserver

import (
	"errors"
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// node is what is kept of a proxy's node message; the message itself, tens of kilobytes of extensions, is not.
type node struct {
	id             string
	namespace      string
	serviceAccount string // empty if the node does not say
	gateway        bool
}

// parseNode reads a node of Istio's form: the id is type~IP~name~domain, and the namespace is in the
// metadata or the first label of the domain.
func parseNode(n *corev3.Node) (node, error) {
	if n.GetId() == "" {
		return node{}, errors.New("the first request has no node id; Istio's form is sidecar~IP~POD.NAMESPACE~NAMESPACE.svc.DOMAIN")
	}
	if len(n.GetId()) > maxWord {
		return node{}, fmt.Errorf("node id of %d bytes, at most %d are allowed; it begins with %.40q", len(n.GetId()), maxWord, n.GetId())
	}
	parts := strings.Split(n.GetId(), "~")
	if len(parts) != 4 {
		return node{}, fmt.Errorf("node id %q has not the form sidecar~IP~POD.NAMESPACE~NAMESPACE.svc.DOMAIN", n.GetId())
	}
	out := node{id: n.GetId(), serviceAccount: metadata(n, "SERVICE_ACCOUNT")}
	switch parts[0] {
	case "sidecar":
	case "router":
		out.gateway = true
	default:
		return node{}, fmt.Errorf("node id %q is of type %q; sidecar and router are served", n.GetId(), parts[0])
	}
	named, _, dotted := strings.Cut(parts[3], ".")
	if !dotted {
		named = ""
	}
	out.namespace = metadata(n, "NAMESPACE")
	if longest := max(len(out.namespace), len(out.serviceAccount)); longest > maxWord {
		return node{}, fmt.Errorf("the node's metadata NAMESPACE or SERVICE_ACCOUNT has %d bytes, at most %d are allowed", longest, maxWord)
	}
	switch {
	case out.namespace == "" && named == "":
		return node{}, fmt.Errorf("node id %q names no namespace, and neither does the metadata NAMESPACE", n.GetId())
	case out.namespace == "":
		out.namespace = named
	case named != "" && named != out.namespace:
		return node{}, fmt.Errorf("the node's metadata NAMESPACE is %q, its id says %q", out.namespace, named)
	}
	return out, nil
}

func metadata(n *corev3.Node, key string) string {
	return n.GetMetadata().GetFields()[key].GetStringValue()
}
