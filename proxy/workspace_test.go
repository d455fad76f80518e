package proxy

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// bodyOfBytes makes a body of a length.
func bodyOfBytes(length int) func() (*response, error) {
	return func() (*response, error) {
		resp := newResponse(200, fromCache)
		resp.bytes = bytes.Repeat([]byte("x"), length)
		return resp, nil
	}
}

// What a body for one request takes is given back when it was written, when it never will be, and when it could not be made.
func TestWorkspaceIsGivenBack(t *testing.T) {
	w := newWorkspace(100, 100, 100)
	c := claim{user: "a", size: 100}
	do := bodyOfBytes(50)
	for _, end := range []func(r *response){
		func(r *response) {
			var written bytes.Buffer
			if _, err := io.Copy(&written, r.reader); err != nil || written.Len() != 50 || r.length != 50 {
				t.Errorf("wrote %q of length %d, %v", written.Bytes(), r.length, err)
			}
		},
		func(r *response) {
			read, err := io.ReadAll(onlyReader{r.reader})
			if err != nil || len(read) != 50 {
				t.Errorf("read %q, %v", read, err)
			}
		},
		func(*response) {},
	} {
		for range 3 { // none of them would fit beside another
			resp, err := w.made(t.Context(), c, do)
			if err != nil {
				t.Fatal(err)
			}
			end(resp)
			_ = resp.reader.Close()
			_ = resp.reader.Close() // whoever is not sure closes once more
		}
	}
	if _, err := w.made(t.Context(), c, func() (*response, error) { return nil, errForward }); !errors.Is(err, errForward) {
		t.Errorf("got %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = w.made(t.Context(), c, func() (*response, error) { panic("a body that cannot be made") })
	}()
	waiting, err := w.made(t.Context(), c, do) // a client that is slow to read it takes no more than it is long
	if err != nil || heldOf(w.space) != 50 {
		t.Errorf("%d are taken instead of 50: %v", heldOf(w.space), err)
	}
	_ = waiting.reader.Close()
	if nothing, err := w.made(t.Context(), claim{user: "a"}, bodyOfBytes(0)); err != nil || nothing.reader.Close() != nil {
		t.Error(err)
	}
	if heldOf(w.space) != 0 {
		t.Error("something was not given back")
	}
	verify(t, w.space)
}

// Who does not get the memory soon is answered by upstream, as is who would never get it.
func TestWorkspaceIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkspace(100, 100, 100)
		take := func(size int64) error { return w.take(t.Context(), claim{user: "a", size: size}) }
		for size, full := range map[int64]bool{101: true, 60: false} {
			if err := take(size); (err != nil) != full {
				t.Errorf("%d: %v", size, err)
			}
		}
		if _, err := w.made(t.Context(), claim{user: "a", size: 60}, bodyOfBytes(1)); !errors.Is(err, errForward) {
			t.Errorf("got %v", err)
		}
		w.space.give("a", 60)
		if err := take(60); err != nil {
			t.Error(err)
		}
	})
}

// However many bodies a user leaves unread, others have room for theirs at once.
func TestWorkspaceIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkspace(100, 50, 100)
		for range 20 {
			if resp, err := w.made(t.Context(), claim{user: "slow", size: 20}, bodyOfBytes(10)); err == nil {
				defer resp.reader.Close()
			}
		}
		if n := heldOf(w.space); n != 40 {
			t.Errorf("a user holds %d, with a share of 50", n)
		}
		began := time.Now()
		resp, err := w.made(t.Context(), claim{user: "other", size: 60}, bodyOfBytes(60))
		if err != nil || time.Since(began) != 0 {
			t.Fatalf("another one got its memory after %v: %v", time.Since(began), err)
		}
		_ = resp.reader.Close()
	})
}

// A client that reads a body slowly may do so for as long as nobody else wants the memory.
func TestWorkspaceOfSlowReader(t *testing.T) {
	for _, wanted := range []bool{false, true} {
		for name, read := range map[string]func(io.Reader, time.Duration) error{
			"read":    readSlowly,
			"written": writeSlowly,
		} {
			for pace, slow := range map[int]bool{paceMin / 2: true, paceMin * 2: false} {
				synctest.Test(t, func(t *testing.T) {
					w := newWorkspace(100<<20, 100<<20, 100)
					const length = 3 << 20
					resp, err := w.made(t.Context(), claim{user: "slow", size: 100 << 20}, bodyOfBytes(length))
					if err != nil {
						t.Fatal(err)
					}
					defer resp.reader.Close()
					if wanted {
						_ = w.take(t.Context(), claim{user: "other", size: 100 << 20})
					}
					err = read(resp.reader, writeSize*time.Second/time.Duration(pace))
					if cut := errors.Is(err, errSlowReader); cut != (wanted && slow) || !cut && err != nil {
						t.Errorf("%s at %d bytes a second, wanted: %t: %v", name, pace, wanted, err)
					}
				})
			}
		}
	}
}

// readSlowly and writeSlowly take a time for each piece of a body.
func readSlowly(r io.Reader, each time.Duration) error {
	piece := make([]byte, writeSize)
	for {
		if _, err := r.Read(piece); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		time.Sleep(each)
	}
}

func writeSlowly(r io.Reader, each time.Duration) error {
	_, err := r.(io.WriterTo).WriteTo(writerFunc(func(p []byte) (int, error) {
		if len(p) > writeSize {
			return 0, errors.New("a piece is too large to have a deadline of its own")
		}
		time.Sleep(each)
		return len(p), nil
	}))
	return err
}

type writerFunc func(p []byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
