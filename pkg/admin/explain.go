package admin

import (
	"bytes"
	"net/http"

	"github.com/metards/metards/pkg/cachemgr"
	"github.com/metards/metards/pkg/explain"
)

// explain answers where a request goes, in words: parameters as explain.Question.Query writes them.
func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	q, err := explain.ParseQuery(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	plans, truth := s.options.Cache.Plans(q.View, q.Host)
	if !truth {
		http.Error(w, "nothing is served yet; see /readyz", http.StatusServiceUnavailable)
		return
	}
	tables := make([]explain.Table, len(plans))
	for i, p := range plans {
		tables[i] = explain.Table{Plan: p.Plan, Note: note(p)}
	}
	var answer bytes.Buffer
	if err := q.Answer(&answer, tables); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if _, err := answer.WriteTo(w); err != nil {
		s.options.Log.Debug("admin page not written", "error", err)
	}
}

// note tells of a table that the gate keeps back.
func note(p cachemgr.Planned) string {
	if p.KeptBack == nil {
		return ""
	}
	out := "this is not served to anybody: "
	if p.Served {
		out = "this is served, and a newer table is not: "
	}
	if p.KeptBack.Objection == "" {
		return out + "the gate has not judged it yet"
	}
	return out + p.KeptBack.Objection
}
