//go:build !race

package grants

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// The costs in bytes are not below the memory in use.
func TestBytes(t *testing.T) {
	const users, namespaces = 40, 2000
	names := make([]string, namespaces)
	for i := range names {
		names[i] = fmt.Sprintf("namespace-%04d", i)
	}
	u := newUpstream(names...)
	u.grant(true, both, names[:50]...)
	b := NewBook()
	used := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := used()
	for i := range users {
		settle(t, u.of(b, Key{User: fmt.Sprint("user", i)}), u.query(true, 100))
	}
	clear(u.asked)
	got := int(used() - before)
	_, counted := b.Held()
	if got > counted || got < counted/3 {
		t.Errorf("%d bytes are in use, %d are counted", got, counted)
	}
	runtime.KeepAlive(b)
}

// A user's reviews are limited, whatever it reads.
func TestReviewRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBook()
		names := make([]string, 1000)
		for i := range names {
			names[i] = fmt.Sprintf("%04d", i)
		}
		u := newUpstream(names...)
		began := time.Now()
		for i := range byte(userBurst/1000 + 2) {
			settle(t, u.of(b, Key{User: "a", Question: [32]byte{i}}), u.query(false, 100))
		}
		if took, want := time.Since(began).Round(time.Second), 2*1000*time.Second/userRate; took != want {
			t.Errorf("%d reviews took %v, want %v", u.count(), took, want)
		}
		began = time.Now()
		settle(t, u.of(b, Key{User: "b"}), u.query(false, 100))
		if took := time.Since(began); took > time.Second {
			t.Errorf("another user waits for %v", took)
		}
	})
}
