package kubefake

import (
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strings"
)

// patchStatus applies a status as a field manager, or merges one.
func (s *Server) patchStatus(w http.ResponseWriter, r *http.Request, of resource) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var patch map[string]any
	if err := json.Unmarshal(body, &patch); err != nil {
		fail(w, http.StatusBadRequest, "BadRequest", of.object, err.Error())
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[of.namespace+"/"+of.object]
	if o == nil {
		fail(w, http.StatusNotFound, "NotFound", of.object, "not found")
		return
	}
	meta, _ := patch["metadata"].(map[string]any)
	if uid := meta["uid"]; uid != nil && uid != o.tree["metadata"].(map[string]any)["uid"] {
		fail(w, http.StatusConflict, "Conflict", of.object, "uid mismatch")
		return
	}
	before, _ := o.tree["status"].(map[string]any)
	after := clone(before)
	if after == nil {
		after = map[string]any{}
	}
	given, _ := patch["status"].(map[string]any)
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/apply-patch") {
		manager := r.URL.Query().Get("fieldManager")
		o.withdraw(after, o.applied[manager], given, manager, nil)
		overlay(after, clone(given), false)
		o.applied[manager] = given
	} else {
		overlay(after, given, true)
	}
	if !reflect.DeepEqual(before, after) {
		o.tree["status"] = after
		s.record("MODIFIED", o)
	}
	reply(w, http.StatusOK, o.tree)
}

// withdraw removes the leaves that a manager applied before, does not apply now, and nobody else applied.
func (o *object) withdraw(from, old, given map[string]any, manager string, path []string) {
	for k, v := range old {
		at := append(append([]string(nil), path...), k)
		if inner, ok := v.(map[string]any); ok {
			target, _ := from[k].(map[string]any)
			next, _ := given[k].(map[string]any)
			if target != nil {
				o.withdraw(target, inner, next, manager, at)
				if len(target) == 0 && next == nil {
					delete(from, k)
				}
			}
			continue
		}
		if _, kept := given[k]; !kept && !o.appliedByOther(manager, at) {
			delete(from, k)
		}
	}
}

func (o *object) appliedByOther(manager string, path []string) bool {
	for name, tree := range o.applied {
		if name == manager {
			continue
		}
		var v any = tree
		for _, k := range path {
			m, _ := v.(map[string]any)
			v = m[k]
		}
		if v != nil {
			return true
		}
	}
	return false
}

// overlay sets what is given; with nulls, those remove.
func overlay(on, given map[string]any, nulls bool) {
	for k, v := range given {
		inner, ok := v.(map[string]any)
		target, is := on[k].(map[string]any)
		switch {
		case v == nil && nulls:
			delete(on, k)
		case ok && is:
			overlay(target, inner, nulls)
		case ok && nulls:
			fresh := map[string]any{}
			overlay(fresh, inner, nulls)
			on[k] = fresh
		default:
			on[k] = v
		}
	}
}
