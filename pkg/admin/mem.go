package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
)

// mem collects garbage, gives free memory back, and answers what is left, in bytes, as one flat object.
func mem(w http.ResponseWriter, _ *http.Request) {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]uint64{ // a peer that went away needs no answer
		"heap_alloc": m.HeapAlloc, "stack_inuse": m.StackInuse, "rss": residentSet(), "goroutines": uint64(runtime.NumGoroutine()),
	})
}

// residentSet is the process's resident memory in bytes, 0 where the system does not tell.
func residentSet() uint64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	var kilobytes uint64
	if _, rest, ok := strings.Cut(string(status), "VmRSS:"); ok {
		if _, err := fmt.Sscan(rest, &kilobytes); err != nil {
			return 0
		}
	}
	return kilobytes << 10
}
