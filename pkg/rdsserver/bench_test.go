package rdsserver_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/rdsserver"
)

// BenchmarkChangeToWire is the time from a change in the store to the response at a proxy, over mTLS in one
// process, after calm. The median is reported as ms-median.
func BenchmarkChangeToWire(b *testing.B) {
	for _, form := range sampleproxy.Forms() {
		b.Run(form.Name, func(b *testing.B) {
			p := newPipeline(b)
			p.deliver(service("orders"))
			x := p.open(form, "shop")
			x.want(table("orders"))
			x.accepted()
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				<-time.After(2 * time.Millisecond) // longer than the quiet period of 1 ms
				began := time.Now()
				p.put(router("orders", fmt.Sprintf("v%d", i)))
				r := x.next()
				took = append(took, r.At.Sub(began))
				x.accept(r)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2])/1e6, "ms-median")
		})
	}
}

// BenchmarkPushToAThousandStreams is one change of a table that 1,000 streams are subscribed to, until the
// last of them has it. It fails if the table is compiled, and so marshalled, more than once.
func BenchmarkPushToAThousandStreams(b *testing.B) {
	const streams = 1000
	for _, form := range sampleproxy.Forms() {
		b.Run(form.Name, func(b *testing.B) {
			p := newPipeline(b, func(o *rdsserver.Options, _ *cachemgr.Options) { o.ResponseTimeout = time.Minute })
			p.deliver(service("orders"))
			cc := p.dial("shop")
			all := make([]*proxy, streams)
			for i := range all {
				all[i] = p.openOn(cc, form, sampleproxy.Node("sidecar", fmt.Sprintf("app%d", i), "shop"))
				all[i].want(table("orders"))
				all[i].accepted()
			}
			before := p.metric("metards_compilations_total")
			n := 0
			for ; b.Loop(); n++ {
				p.put(router("orders", fmt.Sprintf("v%d", n)))
				for _, x := range all {
					x.accepted()
				}
			}
			if got := p.metric("metards_compilations_total") - before; got != float64(n) {
				b.Errorf("%v compilations for %d changes", got, n)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(n*streams), "us/response")
		})
	}
}

// BenchmarkConnect is a proxy's way from the handshake to its first table.
func BenchmarkConnect(b *testing.B) {
	p := newPipeline(b)
	p.deliver(service("orders"))
	b.ReportAllocs()
	for b.Loop() {
		cc := p.dial("shop")
		x := p.openOn(cc, sampleproxy.Forms()[0], sampleproxy.Node("sidecar", "app", "shop"))
		x.want(table("orders"))
		x.accepted()
		_ = cc.Close()
	}
}

// BenchmarkQuietStreams is the memory of a stream that has its table and waits, with the client's half of it, as
// B/stream.
func BenchmarkQuietStreams(b *testing.B) {
	const streams = 1000
	for _, form := range sampleproxy.Forms() {
		b.Run(form.Name, func(b *testing.B) {
			for b.Loop() {
				p := newPipeline(b)
				p.deliver(service("orders"))
				cc := p.dial("shop")
				p.openOn(cc, form, sampleproxy.Node("sidecar", "first", "shop")).want(table("orders"))
				before := memory()
				for i := range streams {
					x := p.openOn(cc, form, sampleproxy.Node("sidecar", fmt.Sprintf("app%d", i), "shop"))
					x.want(table("orders"))
					x.accepted()
				}
				b.ReportMetric(float64(memory()-before)/streams, "B/stream")
				p.end()
			}
		})
	}
}

func memory() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
