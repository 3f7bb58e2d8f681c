package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/metards/metards/internal/sampleproxy"
	"github.com/metards/metards/pkg/staticxds"
)

func TestStaticResourcesAreServedBesideTheTables(t *testing.T) {
	for _, form := range sampleproxy.Forms() {
		if !form.ADS {
			continue
		}
		t.Run(form.Name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "static.yaml")
			r := start(t, func(o *serveFlags) { o.staticResources = file })
			r.eventually("readiness waits for the file", func() bool {
				code, body := r.get("/readyz")
				return code == http.StatusServiceUnavailable && strings.Contains(body, "waiting for the static resources "+file+": ") && strings.Contains(body, "no such file")
			})
			s := r.proxy(form, "web", ordersTable)
			if err := s.Send(sampleproxy.Request{Type: staticxds.ClusterType}); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte("versions: {clusters: '7'}\nclusters: [{name: a}]\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			c, err := s.Next(ctx)
			if err != nil || c.Type != staticxds.ClusterType || c.Version != "7" || len(c.Names) != 1 || c.Names[0] != "a" {
				t.Fatalf("first comes %v, %v", c, err)
			}
			if err := s.Send(sampleproxy.Request{Type: staticxds.ClusterType, Nonce: c.Nonce, Version: c.Version}); err != nil {
				t.Fatal(err)
			}
			if w := firstWeight(t, r.accept(s)); w != 90 {
				t.Errorf("the table has weight %d", w)
			}
			if code, body := r.get("/readyz"); code != http.StatusOK {
				t.Errorf("/readyz says %d %s", code, body)
			}
			var page staticxds.State
			code, body := r.get("/debug/static")
			if err := json.Unmarshal([]byte(body), &page); err != nil || code != http.StatusOK {
				t.Fatalf("%d %v %s", code, err, body)
			}
			if len(page.Types) != 4 || page.Types[0].Version != "7" || len(page.Streams) != 1 || page.Streams[0].Types[0].Accepted.Version != "7" {
				t.Errorf("the page is %s", body)
			}
		})
	}
}

func TestADirectoryOfStaticResourcesIsRefused(t *testing.T) {
	var o serveFlags
	o.register(&cobra.Command{})
	certificates(t, &o)
	o.sources.dir, o.staticResources = t.TempDir(), t.TempDir()
	_, err := newServer(o, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "--static-resources: "+o.staticResources+" is a directory; give a file") {
		t.Errorf("got %v", err)
	}
}
