package filewatch

import "testing"

func TestAPathLeadsToTheLineOfTheDeepestNodeThereIs(t *testing.T) {
	roots, err := parseYAML([]byte(`
kind: X
spec:
  routes:
  - name: one
  -
    match:
      attributes:
        method: {exact: a,
          regex: b}
        a.b: {
          exact: c}
        a]b[c:
          exact: d
    mirror_percentage:
      value: 1
  base: &base
    hosts: [x,
      y]
    both: base
  derived:
    <<: [*base, {other: 1}]
    both: own
  linked: *base
`))
	must(t, err)
	for path, want := range map[string]int{
		"":                               2,
		"kind":                           2,
		"nothing":                        2,
		"spec":                           3,
		"spec.routes":                    4,
		"spec.routes[0]":                 5,
		"spec.routes[0].route[2].weight": 5,
		"spec.routes[1]":                 7,
		"spec.routes[1].match.attributes[method]":       9,
		"spec.routes[1].match.attributes[method].regex": 10,
		"spec.routes[1].match.attributes[a.b].exact":    12,
		"spec.routes[1].match.attributes[a]b[c].exact":  14,
		"spec.routes[1].match.attributes[none].exact":   8,
		"spec.routes[1].mirrorPercentage.value":         16,
		"spec.routes[7].name":                           4,
		"spec.routes[x":                                 4,
		"spec.derived.hosts[1]":                         19,
		"spec.derived.both":                             23,
		"spec.linked.hosts[0]":                          18,
	} {
		if got := lineOf(roots[0], path); got != want {
			t.Errorf("%q is on line %d, want %d", path, got, want)
		}
	}
}
