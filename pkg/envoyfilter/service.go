package envoyfilter

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// Service is what decides the EnvoyFilters of one ServiceEntry or Kubernetes Service.
type Service struct {
	problem.Object
	File      string // where it was written, if in a file
	Line      int
	Created   time.Time
	Hosts     []string
	Addresses []Address
	Headless  bool // a Kubernetes Service that will never have an address: clusterIP None, or type ExternalName
	Ports     []Port
	Selector  map[string]string // of the workloads behind it
}

// Address is an address of a service, as written.
type Address struct {
	Text string
	// Host is the host that istiod allocated the address for, empty for an address of all hosts.
	Host string
}

// Port is a port of a service.
type Port struct {
	mesh.Port
	// Declared is the protocol that istiod takes the port for, in lower case; empty if only the name says it.
	Declared string
	// Target is the port of the workload, 0 if TargetName names one of the pod's ports instead.
	Target     uint32
	TargetName string
}

// Decode makes a Service of a ServiceEntry or a Kubernetes Service in JSON form, whose host ends in the cluster's
// domain. Fields that it does not know are not looked at.
func Decode(tree map[string]any, domain string) (*Service, error) {
	data, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	var o written
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, plain(err)
	}
	s := &Service{Object: problem.Object{Kind: o.Kind, Namespace: cmp.Or(o.Metadata.Namespace, mesh.DefaultNamespace), Name: o.Metadata.Name}}
	if s.Name == "" {
		return nil, fmt.Errorf("%s: metadata.name is missing", o.Kind)
	}
	s.Created, _ = time.Parse(time.RFC3339, o.Metadata.CreationTimestamp) // a faulty one counts as oldest, as in the mesh
	if o.Kind == "Service" {
		return s, s.decodeService(o.Spec, domain)
	}
	return s, s.decodeServiceEntry(o.Spec, o.Status)
}

// written is the outer form of an object.
type written struct {
	Kind     string
	Metadata struct{ Name, Namespace, CreationTimestamp string }
	Spec     json.RawMessage
	Status   json.RawMessage
}

func (s *Service) decodeServiceEntry(spec, status json.RawMessage) error {
	var entry networking.ServiceEntry
	var allocated networking.ServiceEntryStatus
	lenient := protojson.UnmarshalOptions{DiscardUnknown: true}
	if len(spec) > 0 {
		if err := lenient.Unmarshal(spec, &entry); err != nil {
			return fmt.Errorf("spec: %w", err)
		}
	}
	if len(status) > 0 {
		if err := lenient.Unmarshal(status, &allocated); err != nil {
			return fmt.Errorf("status: %w", err)
		}
	}
	s.Hosts, s.Selector = entry.GetHosts(), entry.GetWorkloadSelector().GetLabels()
	for _, a := range entry.GetAddresses() {
		s.Addresses = append(s.Addresses, Address{Text: a})
	}
	if len(s.Addresses) == 0 { // as istiod does: one that is written hides what was allocated before
		for _, a := range allocated.GetAddresses() {
			s.Addresses = append(s.Addresses, Address{Text: a.GetValue(), Host: a.GetHost()})
		}
	}
	for _, p := range entry.GetPorts() {
		s.Ports = append(s.Ports, Port{
			Port:     mesh.Port{Number: p.GetNumber(), Name: p.GetName()},
			Declared: strings.ToLower(p.GetProtocol()), Target: cmp.Or(p.GetTargetPort(), p.GetNumber()),
		})
	}
	return nil
}

func (s *Service) decodeService(data json.RawMessage, domain string) error {
	var spec struct {
		Type       string
		ClusterIP  string
		ClusterIPs []string
		Selector   map[string]string
		Ports      []struct {
			Name, Protocol, AppProtocol string
			Port                        uint32
			TargetPort                  any
		}
	}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &spec); err != nil {
			return plain(err)
		}
	}
	s.Hosts = []string{s.Name + "." + s.Namespace + ".svc." + domain}
	s.Headless = spec.ClusterIP == "None" || spec.Type == "ExternalName"
	s.Selector = spec.Selector
	list := spec.ClusterIPs
	if len(list) == 0 && spec.ClusterIP != "" {
		list = []string{spec.ClusterIP}
	}
	for _, a := range list {
		if a != "None" {
			s.Addresses = append(s.Addresses, Address{Text: a})
		}
	}
	for _, p := range spec.Ports {
		port := Port{Port: mesh.Port{Number: p.Port, Name: p.Name}, Declared: strings.ToLower(p.AppProtocol), Target: p.Port}
		if strings.EqualFold(p.Protocol, "UDP") {
			port.Declared = "udp"
		}
		switch t := p.TargetPort.(type) {
		case float64:
			if t > 0 && t <= 65535 {
				port.Target = uint32(t)
			}
		case string:
			if t != "" {
				port.Target, port.TargetName = 0, t
			}
		}
		s.Ports = append(s.Ports, port)
	}
	return nil
}

// plain says which field has the wrong type, without the names of ours that the decoder tells.
func plain(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err
	}
	if wrong.Field == "" {
		return fmt.Errorf("spec must not be of the type %s", wrong.Value)
	}
	parts := strings.Split(wrong.Field, ".")
	for i, p := range parts {
		parts[i] = strings.ToLower(p[:1]) + p[1:]
	}
	return fmt.Errorf("the field %s must not be of the type %s", strings.Join(parts, "."), wrong.Value)
}
