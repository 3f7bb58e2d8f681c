package main

import (
	"fmt"
	"slices"

	"github.com/metards/metards/pkg/istiowatch"
	"github.com/metards/metards/pkg/problem"
)

// takeMeshConfig puts in force what istiod says of the mesh. A flag that was given counts; where the two
// contradict each other, that is a Problem.
func (s *server) takeMeshConfig(c istiowatch.MeshConfig) {
	var problems []problem.Problem
	// choose returns the flag's value where the flag was given or istiod says nothing.
	choose := func(flag string, fromFlag, fromMesh []string) []string {
		if len(fromMesh) == 0 || fromMesh[0] == "" {
			return fromFlag
		}
		if !s.flags.given[flag] {
			return fromMesh
		}
		if !slices.Equal(fromFlag, fromMesh) {
			problems = append(problems, problem.Problem{
				Severity: problem.Warning, Reason: problem.Contradiction,
				Detail:      fmt.Sprintf("--%s says %q, the mesh's configuration says %q", flag, fromFlag, fromMesh),
				Consequence: "the flag counts",
			})
		}
		return fromFlag
	}
	settings := s.flags.mesh.settings
	settings.RootNamespace = choose("root-namespace", []string{settings.RootNamespace}, []string{c.RootNamespace})[0]
	settings.DefaultServiceExportTo = choose("default-service-export-to", settings.DefaultServiceExportTo, c.DefaultServiceExportTo)
	settings.DefaultRuleExportTo = choose("default-destination-rule-export-to", settings.DefaultRuleExportTo, c.DefaultRuleExportTo)
	domains := choose("trust-domain", s.flags.trustDomains, append([]string{c.TrustDomain}, c.TrustDomainAliases...))
	s.problems.Set("meshconfig", problems)
	s.store.SetSettings(settings)
	s.rds.SetTrustDomains(slices.Concat(domains, s.foreign))
	s.log.Info("the mesh's configuration is in force", "root_namespace", settings.RootNamespace, "trust_domains", domains,
		"default_service_export_to", settings.DefaultServiceExportTo, "default_destination_rule_export_to", settings.DefaultRuleExportTo)
}
