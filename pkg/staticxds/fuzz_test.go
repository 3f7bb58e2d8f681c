package staticxds

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/metards/metards/pkg/problem"
)

func FuzzAFileOfStaticResourcesIsTakenWholeOrHasProblemsWithinIt(f *testing.F) {
	for _, text := range []string{
		"{}", "", "[]", "clusters:\n- name: a\n- name: a", "versions: {clusters: 1, routes: x}\nroutes: [{name: r}]", "clusters: [null, {name: 1}, {name: [a]}]",
		"listeners:\n- name: l\n  filter_chains: [{filters: [{name: tcp, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, cluster: a, stat_prefix: a}}]}]",
		"clusters:\n- name: a\n  type: EDS\n  eds_cluster_config: {eds_config: {ads: {}}, service_name: b}\n  metadata: {filter_metadata: {a: {b: [1, null, {c: d}]}}}",
		"endpoints:\n- cluster_name: a\n  endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 1}}}}]}]",
		"clusters: [{name: a, typed_extension_protocol_options: {x: {'@type': type.googleapis.com/google.protobuf.Any, value: {}}}}]",
		"clusters: [{name: a, typed_extension_protocol_options: {x: {}, y: {'@type': type.googleapis.com/google.protobuf.Struct, value: {a: .inf}}}}]",
	} {
		f.Add([]byte(text), false)
		f.Add([]byte(text), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, asJSON bool) {
		if len(text) > 1<<16 {
			return
		}
		name := "f.yaml"
		if asJSON {
			name = "f.json"
		}
		set, problems := Read(name, text)
		if (set == nil) != problem.HasError(problems) {
			t.Fatalf("taken: %t, with the problems %v", set != nil, problems)
		}
		count := strings.Count(strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n").Replace(string(text)), "\n") + 1
		for _, p := range problems {
			if p.File != name || p.Detail == "" || p.Line < 0 || p.Line > count || p.Reason == problem.Internal {
				t.Errorf("of %d lines: %+v", count, p)
			}
		}
		for k := kind(0); set != nil && k < kinds; k++ {
			for _, r := range set.types[k].sorted {
				wantSound(t, k, r)
			}
		}
	})
}

// wantSound checks that a proxy can read a resource, under its name, and that it is the same once written again.
func wantSound(t *testing.T, k kind, r *Resource) {
	t.Helper()
	m := k.empty()
	if err := r.Any.UnmarshalTo(m); err != nil {
		t.Fatalf("%s %q cannot be read: %v", k, r.Name, err)
	}
	if nameOf(m) != r.Name || r.Version == "" {
		t.Errorf("%s %q has the name %q, the version %q", k, r.Name, nameOf(m), r.Version)
	}
	if faults := validate(m); len(faults) > 0 {
		t.Errorf("%s %q was taken with %v", k, r.Name, faults)
	}
	again, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil || !bytes.Equal(again, r.Any.GetValue()) {
		t.Errorf("%s %q written again has other bytes (%v)", k, r.Name, err)
	}
	if _, err := protojson.Marshal(m); err != nil {
		t.Errorf("%s %q cannot be shown: %v", k, r.Name, err)
	}
}
