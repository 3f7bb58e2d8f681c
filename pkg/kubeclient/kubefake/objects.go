package kubefake

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// object is a stored MetaRouter.
type object struct {
	tree    map[string]any
	applied map[string]map[string]any // what each field manager applied to the status last
}

// event is one line of a watch.
type event struct {
	version int
	line    []byte
}

// Put creates a MetaRouter or changes its spec.
func (s *Server) Put(namespace, name string, spec map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := namespace + "/" + name
	what, o := "MODIFIED", s.objects[k]
	if o == nil {
		what = "ADDED"
		s.uids++
		o = &object{applied: map[string]map[string]any{}, tree: map[string]any{
			"apiVersion": groupVersion(), "kind": "MetaRouter",
			"metadata": map[string]any{
				"namespace": namespace, "name": name, "uid": fmt.Sprintf("uid-%d", s.uids), "generation": int64(0),
				"creationTimestamp": "2026-01-01T00:00:00Z",
			},
		}}
		s.objects[k] = o
	}
	meta := o.tree["metadata"].(map[string]any)
	meta["generation"] = meta["generation"].(int64) + 1
	o.tree["spec"] = spec
	s.record(what, o)
}

// Label gives a MetaRouter that exists a label.
func (s *Server) Label(namespace, name, key, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[namespace+"/"+name]
	o.tree["metadata"].(map[string]any)["labels"] = map[string]any{key: value}
	s.record("MODIFIED", o)
}

// Delete deletes a MetaRouter.
func (s *Server) Delete(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(namespace + "/" + name)
}

// Get returns a copy of a MetaRouter, nil if there is none.
func (s *Server) Get(namespace, name string) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[namespace+"/"+name]
	if o == nil {
		return nil
	}
	return clone(o.tree)
}

// Compact forgets all events, so that watches from before now are refused, and ends those that there are.
func (s *Server) Compact() {
	s.mu.Lock()
	s.version++
	s.oldest, s.history = s.version, nil
	s.mu.Unlock()
	s.CutWatches()
}

// Forget deletes an object without telling the watches.
func (s *Server) Forget(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, namespace+"/"+name)
}

// Bookmark sends a bookmark to all watches.
func (s *Server) Bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.send("BOOKMARK", map[string]any{
		"apiVersion": groupVersion(), "kind": "MetaRouter", "metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)},
	})
}

// CutWatches ends all watches.
func (s *Server) CutWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

func (s *Server) remove(k string) {
	if o := s.objects[k]; o != nil {
		delete(s.objects, k)
		s.record("DELETED", o)
	}
}

// record gives an object a new version and tells the watches; s.mu is held.
func (s *Server) record(what string, o *object) {
	s.version++
	o.tree["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(s.version)
	s.send(what, o.tree)
}

func (s *Server) send(what string, tree map[string]any) {
	line, err := json.Marshal(map[string]any{"type": what, "object": tree})
	if err != nil {
		panic(err)
	}
	s.history = append(s.history, event{s.version, line})
	close(s.news)
	s.news = make(chan struct{})
}

func (s *Server) sorted() []string {
	keys := make([]string, 0, len(s.objects))
	for k := range s.objects {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func clone(tree map[string]any) map[string]any { return runtime.DeepCopyJSON(tree) }

// list answers with a page: the continuation is the number of objects sent before.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.crd == nil || !s.crd.served {
		http.NotFound(w, r)
		return
	}
	keys := s.sorted()
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	to := len(keys)
	meta := map[string]any{"resourceVersion": strconv.Itoa(s.version)}
	if limit > 0 && from+limit < to {
		to = from + limit
		meta["continue"] = strconv.Itoa(to)
	}
	items := make([]any, 0, to-from)
	for _, k := range keys[from:to] {
		items = append(items, s.objects[k].tree)
	}
	reply(w, http.StatusOK, map[string]any{"apiVersion": groupVersion(), "kind": "MetaRouterList", "metadata": meta, "items": items})
}

// watch streams events until the client goes or the test cuts it.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	seconds, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	timeout := time.After(time.Duration(max(seconds, 1)) * time.Second)
	s.mu.Lock()
	served, cut, oldest, down := s.crd != nil && s.crd.served, s.cut, s.oldest, s.http == nil
	s.mu.Unlock()
	if down {
		panic(http.ErrAbortHandler) // it came while the server stops, and would keep it from that
	}
	if !served {
		http.NotFound(w, r)
		return
	}
	from, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest", "", "this server wants a resourceVersion")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	stream := http.NewResponseController(w)
	if from < oldest {
		line, _ := json.Marshal(map[string]any{"type": "ERROR", "object": status(http.StatusGone, "Expired", "", "too old resource version")})
		_, _ = w.Write(append(line, '\n'))
		return
	}
	for {
		s.mu.Lock()
		news := s.news
		var lines []string
		for _, e := range s.history {
			if e.version > from {
				lines, from = append(lines, string(e.line)+"\n"), e.version
			}
		}
		s.mu.Unlock()
		if _, err := w.Write([]byte(strings.Join(lines, ""))); err != nil {
			return
		}
		if err := stream.Flush(); err != nil {
			return
		}
		select {
		case <-news:
		case <-cut:
			return
		case <-timeout:
			return
		case <-r.Context().Done():
			return
		}
	}
}
