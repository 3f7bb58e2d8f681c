package stock

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// Patience bounds every wait for a condition.
const Patience = 30 * time.Second

// Report collects what was expected and seen, prints it as it comes, and as a table at the end.
type Report struct {
	mu   sync.Mutex
	rows []row
}

type row struct {
	test, what, expected, seen string
	ok                         bool
}

// Is checks that what was seen is what was expected.
func (r *Report) Is(t testing.TB, what string, expected, seen any) {
	t.Helper()
	want, got := fmt.Sprint(expected), fmt.Sprint(seen)
	r.Holds(t, what, want, got, want == got)
}

// Holds is for expectations that are not an equality: ok says whether what was seen meets them.
func (r *Report) Holds(t testing.TB, what, expected, seen string, ok bool) {
	t.Helper()
	r.mu.Lock()
	r.rows = append(r.rows, row{t.Name(), what, expected, seen, ok})
	r.mu.Unlock()
	line := fmt.Sprintf("%s | expected: %s | seen: %s", what, expected, seen)
	if ok {
		t.Log(line)
	} else {
		t.Error(line)
	}
}

// Soon waits until what is seen is what was expected. If it never is, it says what was seen last and what the
// witnesses have to tell, and ends the test.
func (r *Report) Soon(t testing.TB, what string, expected any, look func() (string, error), witnesses ...fmt.Stringer) {
	t.Helper()
	want := fmt.Sprint(expected)
	r.Until(t, what, want, func() (string, bool, error) {
		got, err := look()
		return got, got == want, err
	}, witnesses...)
}

// Until is like Soon for expectations that are not an equality.
func (r *Report) Until(t testing.TB, what, expected string, look func() (seen string, ok bool, err error), witnesses ...fmt.Stringer) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(Patience)
	for {
		seen, ok, err := look()
		if err != nil {
			seen, ok = fmt.Sprintf("%s (%v)", seen, err), false
		}
		if ok {
			r.Holds(t, what, expected, seen, true)
			return
		}
		if time.Now().After(deadline) {
			for _, w := range witnesses {
				t.Log(w)
			}
			r.Holds(t, what, expected, seen+", after "+Patience.String(), false)
			t.FailNow()
		}
		<-tick.C
	}
}

// Print writes the table.
func (r *Report) Print(w io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	const whatWidth, valueWidth = 72, 56
	last, failed := "", 0
	for _, row := range r.rows {
		if row.test != last {
			last = row.test
			fmt.Fprintf(w, "\n%s\n", strings.ReplaceAll(strings.TrimPrefix(last, "Test"), "_", " "))
		}
		mark := " "
		if !row.ok {
			mark = "!"
			failed++
		}
		fmt.Fprintf(w, "%s %s | %s | %s\n", mark, pad(row.what, whatWidth), pad(row.expected, valueWidth), row.seen)
	}
	fmt.Fprintf(w, "\n%d expectations, %d not met\n", len(r.rows), failed)
}

func pad(s string, width int) string {
	if n := width - utf8.RuneCountInString(s); n > 0 {
		return s + strings.Repeat(" ", n)
	}
	return s
}
