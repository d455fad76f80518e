//go:build !race

package grants

import (
	"fmt"
	"runtime"
	"testing"
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
