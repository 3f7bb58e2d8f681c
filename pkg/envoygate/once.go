package envoygate

import (
	"context"
	"fmt"

	"github.com/metards/metards/pkg/cachemgr"
)

// Objections has tables judged once, without a queue, and returns what Envoy has against those that it refuses.
// It fails if there is one that could not be judged.
func (g *Gate) Objections(ctx context.Context, tables []*cachemgr.Table) (map[*cachemgr.Table]string, error) {
	probed := g.binary()
	if err := g.probe(ctx); err != nil {
		return nil, g.unable(ctx, err)
	}
	c := &collector{refused: map[*cachemgr.Table]string{}}
	for len(tables) > 0 && c.failed == nil {
		n := min(g.batch, len(tables))
		if err := g.judge(ctx, c, probed, tables[:n]); err != nil {
			return nil, g.unable(ctx, err)
		}
		tables = tables[n:]
	}
	return c.refused, c.failed
}

// unable says why there are no verdicts. A run that was killed because ctx has ended says nothing of the binary.
func (g *Gate) unable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted while envoy at %s judged tables: %w", g.path, ctx.Err())
	}
	return fmt.Errorf("envoy at %s cannot judge tables: %w", g.path, err)
}

// collector takes verdicts down.
type collector struct {
	refused map[*cachemgr.Table]string
	failed  error
}

func (*collector) Pass([]*cachemgr.Table)     {}
func (*collector) GiveBack([]*cachemgr.Table) {}

func (c *collector) Refuse(t *cachemgr.Table, objection string) { c.refused[t] = objection }

func (c *collector) PutOff(t *cachemgr.Table, objection string) {
	c.failed = fmt.Errorf("envoy could not judge the table %s: %s", t.Name.Name, objection)
}
