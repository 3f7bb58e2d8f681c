package admin

import (
	"bytes"
	"net/http"

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
	var answer bytes.Buffer
	if err := q.Answer(&answer, plans); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if _, err := answer.WriteTo(w); err != nil {
		s.options.Log.Debug("admin page not written", "error", err)
	}
}
