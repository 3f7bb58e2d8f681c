package kubefake

import (
	"fmt"
	"net/http"

	"github.com/metards/metards/pkg/kubeclient"
)

// InstallCRD installs the CRD, a new one each time.
func (s *Server) InstallCRD() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uids++
	s.crd = &definition{uid: fmt.Sprintf("crd-%d", s.uids), served: true}
}

// Serve makes the server serve the CRD's objects, or not, as happens just after it was installed.
func (s *Server) Serve(served bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crd.served = served
}

// TerminateCRD begins to delete the CRD: its objects are deleted first, and watches tell that.
func (s *Server) TerminateCRD() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crd.going = true
	for _, k := range s.sorted() {
		s.remove(k)
	}
}

// RemoveCRD ends what TerminateCRD began, watches too.
func (s *Server) RemoveCRD() {
	s.mu.Lock()
	s.crd = nil
	s.mu.Unlock()
	s.CutWatches()
}

func (s *Server) getCRD(w http.ResponseWriter, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.crd == nil {
		fail(w, http.StatusNotFound, "NotFound", name, fmt.Sprintf("customresourcedefinitions.apiextensions.k8s.io %q not found", name))
		return
	}
	meta := map[string]any{"name": name, "uid": s.crd.uid}
	if s.crd.going {
		meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	}
	reply(w, http.StatusOK, map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta})
}

func (s *Server) discover(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	offered := s.crd != nil && s.crd.served
	switch r.URL.Path {
	case "/apis":
		groups := []any{map[string]any{"name": "apiextensions.k8s.io"}}
		if offered {
			groups = append(groups, map[string]any{"name": kubeclient.MetaRouters.Group})
		}
		reply(w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "APIGroupList", "groups": groups})
	case "/apis/" + groupVersion():
		if !offered {
			http.NotFound(w, r)
			return
		}
		verbs := []string{"delete", "get", "list", "watch"}
		if !s.crd.going {
			verbs = append(verbs, "create", "patch", "update")
		}
		reply(w, http.StatusOK, map[string]any{
			"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": groupVersion(),
			"resources": []any{map[string]any{"name": "metarouters/status", "verbs": []string{"get"}}, map[string]any{"name": "metarouters", "verbs": verbs}},
		})
	default:
		http.NotFound(w, r)
	}
}
