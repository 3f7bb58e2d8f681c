package kubefake

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
)

// lease gets, creates and updates Leases.
func (s *Server) lease(w http.ResponseWriter, r *http.Request, of resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := of.namespace + "/" + of.object
	var given map[string]any
	if r.Method != http.MethodGet {
		if err := json.NewDecoder(r.Body).Decode(&given); err != nil {
			fail(w, http.StatusBadRequest, "BadRequest", of.object, err.Error())
			return
		}
		k = of.namespace + "/" + fmt.Sprint(given["metadata"].(map[string]any)["name"])
	}
	stored := s.leases[k]
	switch {
	case r.Method == http.MethodPost && stored != nil:
		fail(w, http.StatusConflict, "AlreadyExists", of.object, "already exists")
		return
	case r.Method != http.MethodPost && stored == nil:
		fail(w, http.StatusNotFound, "NotFound", of.object, fmt.Sprintf("leases.coordination.k8s.io %q not found", of.object))
		return
	case r.Method == http.MethodPut && version(given) != version(stored):
		fail(w, http.StatusConflict, "Conflict", of.object, "the object has been modified")
		return
	case r.Method == http.MethodGet:
		reply(w, http.StatusOK, stored)
		return
	}
	s.version++
	meta := given["metadata"].(map[string]any)
	meta["resourceVersion"] = strconv.Itoa(s.version)
	given["apiVersion"], given["kind"] = "coordination.k8s.io/v1", "Lease"
	s.leases[k] = given
	reply(w, http.StatusOK, given)
}

func version(tree map[string]any) any { return tree["metadata"].(map[string]any)["resourceVersion"] }

// Holder is who holds a Lease, empty if nobody does.
func (s *Server) Holder(namespace, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	spec, _ := s.leases[namespace+"/"+name]["spec"].(map[string]any)
	holder, _ := spec["holderIdentity"].(string)
	return holder
}

// SetHolder writes a holder that was elected just now into a Lease, as another client would.
func (s *Server) SetHolder(namespace, name, holder, at string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.leases[namespace+"/"+name] = map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": map[string]any{"namespace": namespace, "name": name, "resourceVersion": strconv.Itoa(s.version)},
		"spec": map[string]any{
			"holderIdentity": holder, "leaseDurationSeconds": 3600, "acquireTime": at, "renewTime": at, "leaseTransitions": 1,
		},
	}
}
