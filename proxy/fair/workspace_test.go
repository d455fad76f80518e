package fair

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// bodyOfBytes makes a body of a length.
func bodyOfBytes(length int) func() ([]byte, error) {
	return func() ([]byte, error) { return bytes.Repeat([]byte("x"), length), nil }
}

// What a body for one request takes is given back when it was written, when it never will be, and when it could not be made.
func TestWorkspaceIsGivenBack(t *testing.T) {
	w := NewWorkspace(100, 100, 100)
	c := Claim{User: "a", Size: 100}
	do := bodyOfBytes(50)
	for _, end := range []func(body *Body){
		func(body *Body) {
			var written bytes.Buffer
			if _, err := io.Copy(&written, body); err != nil || written.Len() != 50 {
				t.Errorf("wrote %q %v", written.Bytes(), err)
			}
		},
		func(body *Body) {
			read, err := io.ReadAll(struct{ io.Reader }{body})
			if err != nil || len(read) != 50 {
				t.Errorf("read %q, %v", read, err)
			}
		},
		func(*Body) {},
	} {
		for range 3 { // none of them would fit beside another
			body, err := w.Make(t.Context(), c, do)
			if err != nil {
				t.Fatal(err)
			}
			end(body)
			_ = body.Close()
			_ = body.Close() // whoever is not sure closes once more
		}
	}
	if _, err := w.Make(t.Context(), c, func() ([]byte, error) { return nil, io.EOF }); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = w.Make(t.Context(), c, func() ([]byte, error) { panic("a body that cannot be made") })
	}()
	waiting, err := w.Make(t.Context(), c, do) // a client that is slow to read it takes no more than it is long
	if err != nil || w.space.Taken() != 50 {
		t.Errorf("%d are taken instead of 50: %v", w.space.Taken(), err)
	}
	_ = waiting.Close()
	if nothing, err := w.Make(t.Context(), Claim{User: "a"}, bodyOfBytes(0)); err != nil || nothing.Close() != nil {
		t.Error(err)
	}
	if w.space.Taken() != 0 {
		t.Error("something was not given back")
	}
	verify(t, w.space)
}

// Who does not get the memory soon is answered by upstream, as is who would never get it.
func TestWorkspaceIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWorkspace(100, 100, 100)
		take := func(size int64) error { return w.Take(t.Context(), Claim{User: "a", Size: size}) }
		for size, full := range map[int64]bool{101: true, 60: false} {
			if err := take(size); (err != nil) != full {
				t.Errorf("%d: %v", size, err)
			}
		}
		if _, err := w.Make(t.Context(), Claim{User: "a", Size: 60}, bodyOfBytes(1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		w.space.Give("a", 60)
		if err := take(60); err != nil {
			t.Error(err)
		}
	})
}

// However many bodies a user leaves unread, others have room for theirs at once.
func TestWorkspaceIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWorkspace(100, 50, 100)
		for range 20 {
			if body, err := w.Make(t.Context(), Claim{User: "slow", Size: 20}, bodyOfBytes(10)); err == nil {
				defer body.Close()
			}
		}
		if n := w.space.Taken(); n != 40 {
			t.Errorf("a user holds %d, with a share of 50", n)
		}
		began := time.Now()
		body, err := w.Make(t.Context(), Claim{User: "other", Size: 60}, bodyOfBytes(60))
		if err != nil || time.Since(began) != 0 {
			t.Fatalf("another one got its memory after %v: %v", time.Since(began), err)
		}
		_ = body.Close()
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
					w := NewWorkspace(100<<20, 100<<20, 100)
					const length = 3 << 20
					body, err := w.Make(t.Context(), Claim{User: "slow", Size: 100 << 20}, bodyOfBytes(length))
					if err != nil {
						t.Fatal(err)
					}
					defer body.Close()
					if wanted {
						_ = w.Take(t.Context(), Claim{User: "other", Size: 100 << 20})
					}
					err = read(body, WriteSize*time.Second/time.Duration(pace))
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
	piece := make([]byte, WriteSize)
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
		if len(p) > WriteSize {
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
