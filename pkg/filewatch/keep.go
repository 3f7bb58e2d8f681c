package filewatch

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/metards/metards/pkg/mesh"
	"github.com/metards/metards/pkg/problem"
)

// patience is how long a file may keep changing before that is a Problem, and before the first delivery
// no longer waits for it.
const patience = 10 * time.Second

// keeper decides what is in force, from what each walk and each reading saw and when. It has no clock, reads
// nothing, and is not safe for concurrent use.
//
//	a file that is             its objects
//	read                       count
//	changing, or not yet read  stay as they were
//	broken or unreadable       stay as they were
//	out of sight               stay as they were
//	empty now                  stay, but give way to another file that has them
//	gone                       the same, until it is gone for the removal time
//	read, without an object    the same for that object, until the file is unchanged for the removal time
type keeper struct {
	settle, removal time.Duration
	files           []*file // in path order
	byPath          map[string]*file
	hidden          map[string]error
	listed          bool // the root, at least once
	changed         bool // something that resolve looks at
}

// file is what is known of one path.
type file struct {
	path   string    // below the root, with slashes
	seen   found     // as it was when it was last there
	since  time.Time // it is so, or absent, since then
	unread time.Time // what is read of it is out of date since then
	absent bool
	hidden bool // whether it is there is not known
	read   bool // what was seen last has been read
	retry  bool // reading may succeed though nothing of the file changed
	// doubt is why the last good version is kept, although the file has another one.
	doubt *fault
	// silent is set while the last good version is kept although the file says nothing of it any more.
	silent  bool
	objects []*mesh.Object // of the last good version
	gone    []*mesh.Object // of versions before
	ignored map[string]int
}

func newKeeper(settle, removal time.Duration) *keeper {
	return &keeper{settle: settle, removal: removal, byPath: map[string]*file{}}
}

// see takes in what a walk saw.
func (k *keeper) see(l listing, now time.Time) {
	files := make([]*file, 0, len(l.files))
	present := make(map[string]*file, len(l.files))
	for _, x := range l.files {
		f := k.byPath[x.path]
		if f == nil {
			f = &file{path: x.path}
		}
		f.see(x, now)
		files, present[x.path] = append(files, f), f
	}
	for _, f := range k.files {
		if _, ok := present[f.path]; !ok {
			k.changed = f.miss(l.hides(f.path), now) || k.changed
			files, present[f.path] = append(files, f), f
		}
	}
	slices.SortFunc(files, func(a, b *file) int { return cmp.Compare(a.path, b.path) })
	k.files, k.byPath = files, present
	k.changed = k.changed || !maps.EqualFunc(k.hidden, l.hidden, sameText)
	k.hidden = l.hidden
	_, rootHidden := l.hidden[""]
	k.listed = k.listed || !rootHidden
}

func sameText(a, b error) bool { return a.Error() == b.Error() }

func (f *file) see(x found, now time.Time) {
	f.hidden = false
	if !f.absent && f.seen.same(x) {
		return
	}
	if f.read || f.since.IsZero() {
		f.unread = now
	}
	f.seen, f.since, f.absent, f.read, f.retry = x, now, false, false, false
}

// same reports whether a file need not be read again.
func (a found) same(b found) bool {
	if a.err != nil || b.err != nil {
		return a.err != nil && b.err != nil && sameText(a.err, b.err)
	}
	return a.info != nil && sameTimeAndSize(a.info, b.info) && a.info.Mode() == b.info.Mode() && os.SameFile(a.info, b.info)
}

// miss notes that a file is not there, or out of sight, and reports whether its objects give way from now on.
func (f *file) miss(hidden bool, now time.Time) bool {
	f.hidden = hidden
	if hidden {
		f.since = now // no time counts in which the file is out of sight
		return false
	}
	if f.absent {
		return false
	}
	f.since, f.absent, f.silent = now, true, true
	return true
}

// there reports whether the file can be read.
func (f *file) there() bool { return !f.absent && !f.hidden }

// unreadFiles returns the files to read now.
func (k *keeper) unreadFiles(now time.Time) []*file {
	var out []*file
	for _, f := range k.files {
		switch {
		case !f.there() || f.read && !f.retry:
		case f.retry || f.settled(now, k.settle):
			out = append(out, f)
		case f.restless(now) && (f.doubt == nil || f.doubt.reason != problem.Unreadable):
			f.doubt = &fault{problem.Unreadable, 0, "the file changes all the time; it is read once it rests"}
			k.changed = true
		}
	}
	return out
}

func (f *file) settled(now time.Time, settle time.Duration) bool {
	return now.Sub(f.since) >= settle || f.seen.err == nil && now.Sub(f.seen.info.ModTime()) >= settle
}

func (f *file) restless(now time.Time) bool { return !f.read && now.Sub(f.unread) >= patience }

// take takes in what a file says, read as it was seen last.
func (k *keeper) take(f *file, c content) {
	k.changed = k.changed || !f.retry || c.fault == nil || *c.fault != *f.doubt
	f.read, f.retry, f.doubt = true, false, nil
	switch {
	case c.fault != nil:
		f.doubt, f.retry = c.fault, c.fault.reason == problem.Unreadable
	case c.empty && f.had():
		f.silent = true
		f.doubt = &fault{problem.Ignored, 0, "the file is empty, perhaps about to be written; delete it to remove its objects"}
	default:
		f.gone = without(slices.Concat(f.objects, f.gone), c.objects)
		f.objects, f.ignored, f.silent = c.objects, c.ignored, false
	}
}

// had reports whether objects that the file said are in force, as far as other files leave them.
func (f *file) had() bool { return len(f.objects)+len(f.gone) > 0 }

// without returns the objects of a list whose keys are not among others.
func without(list, others []*mesh.Object) []*mesh.Object {
	if len(list) == 0 {
		return nil
	}
	keys := make(map[mesh.Key]struct{}, len(others))
	for _, o := range others {
		keys[o.Key] = struct{}{}
	}
	return slices.DeleteFunc(list, func(o *mesh.Object) bool {
		_, ok := keys[o.Key]
		return ok
	})
}

// expire lets go of what is believed gone by now.
func (k *keeper) expire(now time.Time) {
	for _, f := range k.files {
		if due, ok := f.expiry(k.removal); !ok || now.Before(due) {
			continue
		}
		k.changed = true
		f.gone = nil
		if f.absent {
			delete(k.byPath, f.path)
		}
	}
	k.files = slices.DeleteFunc(k.files, func(f *file) bool { return k.byPath[f.path] != f })
}

// expiry returns when something of a file is believed gone, if nothing happens till then.
func (f *file) expiry(removal time.Duration) (time.Time, bool) {
	waiting := f.absent || f.read && f.doubt == nil && len(f.gone) > 0
	return f.since.Add(removal), waiting && !f.hidden
}

// next returns when to look again even if nothing is noticed, if there is such a time.
func (k *keeper) next() (at time.Time, ok bool) {
	for _, f := range k.files {
		due, waiting := f.expiry(k.removal)
		if f.there() && !f.read {
			due, waiting = f.since.Add(k.settle), true
		}
		if waiting && (!ok || due.Before(at)) {
			at, ok = due, true
		}
	}
	return at, ok
}

// complete reports whether all that is there is read.
func (k *keeper) complete(now time.Time) bool {
	return k.listed && !slices.ContainsFunc(k.files, func(f *file) bool {
		return f.there() && !f.read && !f.restless(now)
	})
}
