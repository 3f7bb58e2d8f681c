package stock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// Answer is what came back of a request.
type Answer struct {
	Code     int
	Upstream string      // who answered, empty if it was Envoy itself
	Header   http.Header // of the response
	Seen     http.Header // of the request as the upstream saw it
	Body     string      // if it was Envoy itself
}

// Who is the upstream that answered, or the status code of Envoy's own answer.
func (a Answer) Who() string {
	if a.Upstream == "" {
		return fmt.Sprint(a.Code)
	}
	return a.Upstream
}

var client = &http.Client{
	Timeout:   30 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 16, DisableCompression: true},
}

// Request sends a request with the given attributes as headers; the attribute :path is its path.
func Request(ctx context.Context, addr string, attributes map[string]string) (Answer, error) {
	path := "/"
	if p := attributes[":path"]; p != "" {
		path = p
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+(&url.URL{Path: path}).String(), nil)
	if err != nil {
		return Answer{}, err
	}
	for name, value := range attributes {
		if name != ":path" {
			req.Header[name] = append(req.Header[name], value)
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		return Answer{}, err
	}
	body, err := readAll(resp)
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Code: resp.StatusCode, Header: resp.Header, Upstream: resp.Header.Get(nameHeader)}
	if a.Upstream == "" {
		a.Body = body
		return a, nil
	}
	return a, json.Unmarshal([]byte(body), &a.Seen)
}

func readAll(resp *http.Response) (string, error) {
	body, err := io.ReadAll(resp.Body)
	return string(body), errors.Join(err, resp.Body.Close())
}

func regexpQuery(text string) string { return url.QueryEscape(text) }

// Tally counts answers by who gave them, and keeps what failed: no answer, or a status other than 200.
type Tally struct {
	By     map[string]int
	Total  int
	Failed []string // at most a hundred

	mu sync.Mutex
}

func (t *Tally) add(a Answer, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Total++
	switch {
	case err != nil:
		t.fail(err.Error())
	case a.Code != http.StatusOK:
		t.fail(fmt.Sprintf("%d %s", a.Code, a.Body))
	default:
		t.By[a.Upstream]++
	}
}

func (t *Tally) fail(why string) {
	if len(t.Failed) < 100 {
		t.Failed = append(t.Failed, time.Now().Format("15:04:05.000 ")+why)
	}
}

// Send sends n requests, some at a time, and counts the answers.
func Send(ctx context.Context, n int, addr string, attributes map[string]string) *Tally {
	t := &Tally{By: map[string]int{}}
	var wg sync.WaitGroup
	next := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			for range next {
				t.add(Request(ctx, addr, attributes))
			}
		})
	}
	for range n {
		next <- struct{}{}
	}
	close(next)
	wg.Wait()
	return t
}

// Load is traffic that goes on until it is stopped.
type Load struct {
	tally *Tally
	stop  chan struct{}
	done  chan struct{}
}

// StartLoad sends a request every few milliseconds.
func StartLoad(addr string, attributes map[string]string) *Load {
	l := &Load{tally: &Tally{By: map[string]int{}}, stop: make(chan struct{}), done: make(chan struct{})}
	go l.run(addr, attributes)
	return l
}

func (l *Load) run(addr string, attributes map[string]string) {
	defer close(l.done)
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
			wg.Go(func() { l.tally.add(Request(context.Background(), addr, attributes)) })
		}
	}
}

// Now is the tally so far: who answered how often.
func (l *Load) Now() map[string]int {
	l.tally.mu.Lock()
	defer l.tally.mu.Unlock()
	out := make(map[string]int, len(l.tally.By))
	for k, v := range l.tally.By {
		out[k] = v
	}
	return out
}

// Stop ends the traffic and returns the tally.
func (l *Load) Stop() *Tally {
	close(l.stop)
	<-l.done
	return l.tally
}
