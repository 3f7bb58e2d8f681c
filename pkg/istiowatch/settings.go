package istiowatch

import (
	"reflect"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// meshConfigType is sent as it is, without the envelope of the other kinds.
const meshConfigType = "core/v1alpha1/MeshConfig"

// settings follows the mesh's own settings.
type settings struct {
	sink     Sink
	tell     func(MeshConfig)
	problems *problem.Board

	told      *MeshConfig // nil if never
	delivered bool
}

func newSettings(o *Options) *settings {
	return &settings{sink: o.Sink, tell: o.MeshConfig, problems: o.Problems}
}

// take tells of settings that differ. Settings that cannot be decoded, or that are missing, leave the previous
// in force; at first, the former are waited for, as by default everybody may see everything.
func (s *settings) take(_ int, resources []*anypb.Any, _, _ time.Time) verdict {
	if len(resources) == 0 {
		s.report(problem.Problem{
			Severity: problem.Warning, Reason: problem.Ignored,
			Detail:      "the server has no " + meshConfigType,
			Consequence: "the previous settings of the mesh, or our own, stay in force",
		})
		s.deliver()
		return verdict{}
	}
	var message meshconfig.MeshConfig
	if err := resources[0].UnmarshalTo(&message); err != nil {
		p := problem.Problem{
			Severity: problem.Error, Reason: problem.Undecodable,
			Detail:      "the mesh's settings " + meshConfigType + " cannot be decoded: " + detail(err),
			Consequence: "the previous settings stay in force",
		}
		if s.told == nil {
			p.Consequence = "waiting for settings that can"
		}
		s.report(p)
		return verdict{faulty: 1, unreadable: 1, complaint: p.Detail}
	}
	s.report()
	if c := reduceSettings(&message); s.told == nil || !reflect.DeepEqual(c, *s.told) {
		s.told = &c
		s.tell(c)
	}
	s.deliver()
	return verdict{}
}

func (s *settings) deliver() {
	if !s.delivered {
		s.delivered = true
		s.sink.Apply(mesh.MCP, mesh.Batch{Complete: []mesh.Kind{mesh.KindMeshConfig}})
	}
}

func (s *settings) report(list ...problem.Problem) { s.problems.Set("mcp/settings", list) }

func reduceSettings(m *meshconfig.MeshConfig) MeshConfig {
	sorted := func(list []string) []string {
		list = slices.Clone(list)
		slices.Sort(list)
		return list
	}
	return MeshConfig{
		RootNamespace: m.GetRootNamespace(), TrustDomain: m.GetTrustDomain(), TrustDomainAliases: sorted(m.GetTrustDomainAliases()),
		DefaultServiceExportTo: sorted(m.GetDefaultServiceExportTo()),
		DefaultRuleExportTo:    sorted(m.GetDefaultDestinationRuleExportTo()),
	}
}

func (s *settings) newStream() {}

func (s *settings) due(int) time.Time { return time.Time{} }
