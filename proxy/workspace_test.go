package proxy

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/synctest"
)

// What a body for one request takes is given back when it was written, when it never will be, and when it could not be made.
func TestWorkspaceIsGivenBack(t *testing.T) {
	w := newWorkspace(100)
	body := bytes.Repeat([]byte("x"), 50)
	do := func() (*response, error) {
		resp := newResponse(200, fromCache)
		resp.bytes = body
		return resp, nil
	}
	for _, end := range []func(r *response){
		func(r *response) {
			var written bytes.Buffer
			if _, err := io.Copy(&written, r.reader); err != nil || !bytes.Equal(written.Bytes(), body) || r.length != int64(len(body)) {
				t.Errorf("wrote %q of length %d, %v", written.Bytes(), r.length, err)
			}
		},
		func(*response) {},
	} {
		for range 3 { // none of them would fit beside another
			resp, err := w.made(50, 2, do)
			if err != nil {
				t.Fatal(err)
			}
			end(resp)
			_ = resp.reader.Close()
			_ = resp.reader.Close() // whoever is not sure closes once more
		}
	}
	if _, err := w.made(50, 2, func() (*response, error) { return nil, errForward }); !errors.Is(err, errForward) {
		t.Errorf("got %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = w.made(50, 2, func() (*response, error) { panic("a body that cannot be made") })
	}()
	waiting, err := w.made(50, 2, do) // a client that is slow to read it takes no more than it is long
	if err != nil || !w.free.TryAcquire(50) || w.free.TryAcquire(1) {
		t.Errorf("more than the body is taken, or less: %v", err)
	}
	w.free.Release(50)
	_ = waiting.reader.Close()
	if !w.free.TryAcquire(100) {
		t.Error("something was not given back")
	}
}

// Who does not get the memory soon is answered by upstream, as is who would never get it.
func TestWorkspaceIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkspace(100)
		if _, err := w.take(101); !errors.Is(err, errForward) {
			t.Errorf("got %v", err)
		}
		giveBack, err := w.take(60)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.take(60); !errors.Is(err, errForward) {
			t.Errorf("got %v", err)
		}
		giveBack()
		if _, err := w.take(60); err != nil {
			t.Error(err)
		}
	})
}
