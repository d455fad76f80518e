package proxy

import (
	"bytes"
	"context"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// What it takes to make a body, in bytes for each byte of JSON that it is made of, at its
// highest. The YAML library has been seen to take 89.
const (
	yamlWork   = 96
	indentWork = 6
	gzipWork   = 3
	cutWork    = 2
)

// workspaceWait is how long a read waits for others to be written: upstream can make the body as well.
const workspaceWait = 2 * time.Second

// workspace bounds the memory of answers that are made for one request each, all together, until they are
// written: what clients ask for is not to decide how much memory that is.
type workspace struct {
	size int64
	free *semaphore.Weighted
}

func newWorkspace(size int64) *workspace {
	return &workspace{size, semaphore.NewWeighted(size)}
}

// take returns what gives the memory back, which is to be called once, or errForward.
func (w *workspace) take(size int64) (giveBack func(), err error) {
	if size > w.size {
		return nil, errForward
	}
	ctx, cancel := context.WithTimeout(context.Background(), workspaceWait)
	defer cancel()
	if w.free.Acquire(ctx, size) != nil {
		return nil, errForward
	}
	return func() { w.free.Release(size) }, nil
}

// made is a response whose body takes work times the memory of what it is made of.
func (w *workspace) made(size, work int64, do func() (*response, error)) (*response, error) {
	giveBack, err := w.take(size * work)
	if err != nil {
		return nil, err
	}
	defer func() { giveBack() }() // whatever happens
	resp, err := do()
	if err != nil || resp.bytes == nil {
		return resp, err
	}
	length := int64(len(resp.bytes))
	keeps := min(length, size*work)
	resp.reader, resp.length = &held{bytes.NewReader(resp.bytes), sync.OnceFunc(func() { w.free.Release(keeps) })}, length
	resp.bytes = nil
	giveBack = func() { w.free.Release(size*work - keeps) } // what making it took
	return resp, nil
}

// held is a body that gives its memory back when it was written, or never will be.
type held struct {
	*bytes.Reader
	giveBack func()
}

// WriteTo implements io.WriterTo.
func (h *held) WriteTo(w io.Writer) (int64, error) { return buffered{h.Reader}.WriteTo(w) }

// Close implements io.Closer.
func (h *held) Close() error {
	h.giveBack()
	return nil
}
