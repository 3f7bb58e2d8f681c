package mesh

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/metards/metards/pkg/apis/metaprotocol/v1alpha1"
)

// Saved is a Store's content as data, for a restart during an outage: the last valid version of every
// object, and which lists it is complete for.
type Saved struct {
	At       time.Time     `json:"at"`
	Settings Settings      `json:"settings"`
	Feeds    []Feed        `json:"feeds"`
	Objects  []SavedObject `json:"objects"`
}

// SavedObject is one object of one source.
type SavedObject struct {
	Source    Source          `json:"source"`
	Kind      Kind            `json:"kind"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Created   time.Time       `json:"created"`
	Spec      json.RawMessage `json:"spec"`
}

// Generation changes whenever what Save returns does.
func (s *Store) Generation() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.generation
}

// Save returns the content. Lists that a saved state stands in for count as complete.
func (s *Store) Save() (Saved, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := Saved{At: time.Now(), Settings: s.settings, Feeds: slices.Clone(s.delivered)}
	for k, r := range s.records {
		for source, h := range r {
			if h == nil || h.valid == nil {
				continue
			}
			spec, err := marshalSpec(h.valid.Spec)
			if err != nil {
				return Saved{}, fmt.Errorf("save %s: %w", k.Ref(), err)
			}
			out.Objects = append(out.Objects, SavedObject{
				Source: Source(source), Kind: k.Kind, Namespace: k.Namespace, Name: k.Name, Created: h.valid.Created, Spec: spec,
			})
		}
	}
	slices.SortFunc(out.Objects, func(a, b SavedObject) int {
		if a.Source != b.Source {
			return int(a.Source - b.Source)
		}
		return compareKeys(a.key(), b.key())
	})
	return out, nil
}

func (o SavedObject) key() Key { return Key{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name} }

func marshalSpec(s Spec) ([]byte, error) {
	if m, ok := s.(*MetaRouter); ok {
		return protojson.Marshal(m.MetaRouter)
	}
	return json.Marshal(s)
}

func (o SavedObject) object() (*Object, error) {
	out := &Object{Key: o.key(), Created: o.Created}
	switch o.Kind {
	case KindServiceEntry:
		s := &ServiceEntry{}
		out.Spec = s
		return out, json.Unmarshal(o.Spec, s)
	case KindDestinationRule:
		d := &DestinationRule{}
		out.Spec = d
		return out, json.Unmarshal(o.Spec, d)
	case KindMetaRouter:
		m := &v1alpha1.MetaRouter{}
		out.Spec = &MetaRouter{m}
		return out, protojson.Unmarshal(o.Spec, m)
	default:
		return nil, fmt.Errorf("unknown kind %q", o.Kind)
	}
}

// remembered is a saved state that was read at the start.
type remembered struct {
	saved   Saved
	objects map[Source]map[Key]*Object
}

// Remember takes in the state that an earlier process saved. Nothing of it is in force by that: an object
// that arrives invalid gets its last valid version from it, and StandIn may use it. It must be called before
// the first Apply.
func (s *Store) Remember(saved Saved) error {
	m := &remembered{saved: saved, objects: map[Source]map[Key]*Object{}}
	for _, o := range saved.Objects {
		if o.Source < 0 || o.Source >= numSources {
			return fmt.Errorf("saved %s is of the unknown source %d", o.key().Ref(), o.Source)
		}
		object, err := o.object()
		if err != nil {
			return fmt.Errorf("saved %s: %w", o.key().Ref(), err)
		}
		if o.Kind == KindMetaRouter {
			if faults := s.judge(object); len(faults) > 0 {
				continue // judged by other limits then
			}
		}
		if m.objects[o.Source] == nil {
			m.objects[o.Source] = map[Key]*Object{}
		}
		m.objects[o.Source][o.key()] = object
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remembered = m
	return nil
}

// Remembered returns what an earlier process saved of a kind from a source, in no order; nothing once every
// source has delivered.
func (s *Store) Remembered(source Source, kind Kind) []*Object {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.remembered == nil {
		return nil
	}
	var out []*Object
	for k, o := range s.remembered.objects[source] {
		if k.Kind == kind {
			out = append(out, o)
		}
	}
	return out
}

// recall returns the last valid version that an earlier process saved, nil if none; s.mu is held.
func (s *Store) recall(source Source, k Key) *Object {
	if s.remembered == nil {
		return nil
	}
	return s.remembered.objects[source][k]
}

// StandIn puts the remembered state in the place of the lists that are missing, as far as it was complete
// for them, and returns which. When their source delivers them, that counts.
func (s *Store) StandIn() []Feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.remembered == nil {
		return nil
	}
	var out []Feed
	e := effects{}
	for _, f := range slices.Clone(s.missing) {
		if !slices.Contains(s.remembered.saved.Feeds, f) {
			continue
		}
		out = append(out, f)
		if f.Kind == KindMeshConfig {
			s.configure(s.remembered.saved.Settings, e)
		}
		for k, o := range s.remembered.objects[f.Source] {
			if k.Kind == f.Kind && (s.records[k] == nil || s.records[k][f.Source] == nil) {
				s.put(f.Source, o, e)
			}
		}
		s.missing = slices.DeleteFunc(s.missing, func(m Feed) bool { return m == f })
	}
	s.stoodIn = append(s.stoodIn, out...)
	s.delivered = append(s.delivered, out...)
	s.finish(e, len(out) > 0 && len(s.missing) == 0)
	return out
}

// StoodIn returns the lists that the remembered state stands in for, and when it was saved.
func (s *Store) StoodIn() ([]Feed, time.Time) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.remembered == nil {
		return nil, time.Time{}
	}
	return slices.Clone(s.stoodIn), s.remembered.saved.At
}
