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

// bodyOfBytes returns a function that makes a body of length bytes.
func bodyOfBytes(length int) func() ([]byte, error) {
	return func() ([]byte, error) { return bytes.Repeat([]byte("x"), length), nil }
}

// The memory of a body for one request is given back when the body was written, dropped, or could
// not be made.
func TestWorkspaceIsGivenBack(t *testing.T) {
	w := NewWorkspace(100, false, 100)
	c := Claim{User: "a", Size: 100}
	do := bodyOfBytes(50)
	for _, end := range []func(body *Body){
		func(body *Body) {
			read, err := io.ReadAll(body)
			if err != nil || len(read) != 50 {
				t.Errorf("read %q, %v", read, err)
			}
		},
		func(*Body) {},
	} {
		for range 3 { // two bodies would not fit at the same time
			body, err := w.Make(t.Context(), c, do)
			if err != nil {
				t.Fatal(err)
			}
			end(body)
			_ = body.Close()
			_ = body.Close() // closing twice is harmless
		}
	}
	if _, err := w.Make(t.Context(), c, func() ([]byte, error) { return nil, io.EOF }); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = w.Make(t.Context(), c, func() ([]byte, error) { panic("a body that cannot be made") })
	}()
	waiting, err := w.Make(t.Context(), c, do) // an unread body holds only its own length
	if err != nil || w.Taken() != 50 {
		t.Errorf("%d are taken instead of 50: %v", w.Taken(), err)
	}
	_ = waiting.Close()
	if nothing, err := w.Make(t.Context(), Claim{User: "a"}, bodyOfBytes(0)); err != nil || nothing.Close() != nil {
		t.Error(err)
	}
	if w.Taken() != 0 {
		t.Error("something was not given back")
	}
}

// A read fails if the memory is not free soon, or if its claim exceeds the workspace. Upstream then
// answers.
func TestWorkspaceIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWorkspace(100, false, 100)
		take := func(size int64) error { return w.Take(t.Context(), Claim{User: "a", Size: size}) }
		for size, full := range map[int64]bool{101: true, 60: false} {
			if err := take(size); (err != nil) != full {
				t.Errorf("%d: %v", size, err)
			}
		}
		if _, err := w.Make(t.Context(), Claim{User: "a", Size: 60}, bodyOfBytes(1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		w.Give("a", 60)
		if err := take(60); err != nil {
			t.Error(err)
		}
	})
}

// Other users get memory immediately, however many bodies a user leaves unread.
func TestWorkspaceIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWorkspace(100, true, 100)
		for range 20 {
			if body, err := w.Make(t.Context(), Claim{User: "slow", Size: 20}, bodyOfBytes(10)); err == nil {
				defer body.Close()
			}
		}
		if n := w.Taken(); n != 40 {
			t.Errorf("a user holds %d, its share is 50", n)
		}
		began := time.Now()
		body, err := w.Make(t.Context(), Claim{User: "other", Size: 60}, bodyOfBytes(60))
		if err != nil || time.Since(began) != 0 {
			t.Fatalf("another user got its memory after %v: %v", time.Since(began), err)
		}
		_ = body.Close()
	})
}

// A client may read a body slowly while no other user needs the memory.
func TestWorkspaceOfSlowReader(t *testing.T) {
	for _, wanted := range []bool{false, true} {
		for pace, slow := range map[int]bool{paceMin / 2: true, paceMin * 2: false} {
			synctest.Test(t, func(t *testing.T) {
				w := NewWorkspace(100<<20, false, 100)
				const length = 3 << 20
				body, err := w.Make(t.Context(), Claim{User: "slow", Size: 100 << 20}, bodyOfBytes(length))
				if err != nil {
					t.Fatal(err)
				}
				defer body.Close()
				if wanted {
					_ = w.Take(t.Context(), Claim{User: "other", Size: 100 << 20})
				}
				err = readSlowly(body, WriteSize*time.Second/time.Duration(pace))
				if cut := errors.Is(err, errSlowReader); cut != (wanted && slow) || !cut && err != nil {
					t.Errorf("at %d bytes a second, wanted: %t: %v", pace, wanted, err)
				}
			})
		}
	}
}

// readSlowly reads a body and pauses after each piece.
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
