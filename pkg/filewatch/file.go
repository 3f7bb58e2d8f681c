package filewatch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/metards/metards/pkg/problem"
)

// DefaultLimits are the limits that hold where none are given.
var DefaultLimits = Limits{FileSize: 16 << 20}

// Limits bound what is read. A zero field stands for the default.
type Limits struct {
	FileSize int64 // bytes of one file
	trees    bool  // no limit, but it takes the same way: keep the whole objects
}

func (l Limits) orDefault() Limits {
	if l.FileSize <= 0 {
		l.FileSize = DefaultLimits.FileSize
	}
	return l
}

// readFile returns what a file says. It reports false if the file is not the one that was seen, or changed
// while it was read: what was read may then be half of something.
func readFile(name string, seen found, limits Limits) (content, bool) {
	if seen.err != nil {
		return unreadable(seen.err), true
	}
	if !seen.info.Mode().IsRegular() {
		return unreadable(errors.New("not a regular file")), true
	}
	if size := seen.info.Size(); size > limits.FileSize {
		return content{fault: tooLarge(size, limits)}, true
	}
	data, steady, err := readSteady(name, seen.info, limits)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return content{}, false
	case err != nil:
		return unreadable(err), true
	case int64(len(data)) > limits.FileSize:
		return content{fault: tooLarge(int64(len(data)), limits)}, steady
	}
	return readText(name, data, limits), steady
}

// readSteady reads a file and reports whether it is as it was seen, before and after reading.
func readSteady(name string, seen os.FileInfo, limits Limits) (data []byte, steady bool, err error) {
	// Should a pipe have taken the file's place, opening must not wait for somebody to write into it.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	before, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	if !before.Mode().IsRegular() {
		return nil, false, nil
	}
	buffer := bytes.NewBuffer(make([]byte, 0, min(before.Size(), limits.FileSize)+bytes.MinRead))
	if _, err := buffer.ReadFrom(io.LimitReader(f, limits.FileSize+1)); err != nil {
		return nil, false, err
	}
	after, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	return buffer.Bytes(), sameTimeAndSize(seen, before) && sameTimeAndSize(before, after), nil
}

func sameTimeAndSize(a, b os.FileInfo) bool {
	return a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func unreadable(err error) content {
	return content{fault: &fault{problem.Unreadable, 0, err.Error()}}
}

func tooLarge(size int64, limits Limits) *fault {
	return &fault{problem.TooLarge, 0, fmt.Sprintf("the file has %d bytes; at most %d are read", size, limits.FileSize)}
}

// readAll reads files side by side, as many at a time as there are processors.
func readAll(files []*file, name func(path string) string, limits Limits) (contents []content, steady []bool) {
	contents, steady = make([]content, len(files)), make([]bool, len(files))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, f := range files {
		g.Go(func() error {
			contents[i], steady[i] = readFile(name(f.path), f.seen, limits)
			return nil
		})
	}
	_ = g.Wait() // none fails: a file's fault is part of its content
	return contents, steady
}
