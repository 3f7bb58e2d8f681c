package admin_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/routes"
)

func TestNothingIsExplainedBeforeThereIsTruth(t *testing.T) {
	s := newServerOf(t, untold{}, ready)
	r := httptest.NewRequest(http.MethodGet, "/debug/explain?host=a.b&namespace=web", nil)
	r.RemoteAddr = "127.0.0.1:1234"
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d %s, want 503: what is not known yet is not \"no such service\"", w.Code, w.Body)
	}
}

type untold struct{ nothing }

func (untold) Plans(mesh.View, string) ([]cachemgr.Planned, bool) { return nil, false }

func TestWhatTheGateKeepsBackIsNotExplainedAsServed(t *testing.T) {
	plan := &routes.Plan{Service: "a.b", Port: 1, Protocol: "metaprotocol", Routes: []routes.Route{{Name: "r", Destinations: []routes.Destination{{Host: "a.b", Port: 1}}}}}
	for want, p := range map[string]cachemgr.Planned{
		"  note: this is not served to anybody: the gate has not judged it yet\n": {Plan: plan, KeptBack: &cachemgr.KeptBackState{}},
		"  note: this is served, and a newer table is not: a bare %\n":            {Plan: plan, Served: true, KeptBack: &cachemgr.KeptBackState{Objection: "a bare %"}},
		"(default, no MetaRouter)\n  1. r: any request -> ":                       {Plan: plan, Served: true},
	} {
		s := newServerOf(t, planned{p: p}, ready)
		r := httptest.NewRequest(http.MethodGet, "/debug/explain?host=a.b&namespace=web", nil)
		r.RemoteAddr = "127.0.0.1:1234"
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%d %s does not say %q", w.Code, w.Body, want)
		}
	}
}

type planned struct {
	nothing
	p cachemgr.Planned
}

func (c planned) Plans(mesh.View, string) ([]cachemgr.Planned, bool) {
	return []cachemgr.Planned{c.p}, true
}
