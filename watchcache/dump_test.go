package watchcache_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/watchcache"
)

// dumped returns a dump with events, a deletion and a gap.
func dumped(t testing.TB) []byte {
	t.Helper()
	up := &upstream{r: watchcache.Random(t), rv: 100}
	for range 300 {
		up.step()
	}
	c := watchcache.New(*watchcache.Pods, watchcache.Limits{Age: time.Minute, Events: 1000, Bytes: 1 << 20})
	c.Reset(up.now.list(), up.rv)
	fed := len(up.writes)
	for range 50 {
		up.step()
	}
	var changes []watchcache.Change
	for _, w := range up.writes[fed:] {
		changes = append(changes, w.change())
	}
	watchcache.Apply(t, c, changes...)
	for range 50 {
		up.step()
	}
	if err := c.Replace(up.now.list(), up.rv, watchcache.Noon); err != nil {
		t.Fatal(err)
	}
	return dump(t, c).Bytes()
}

func dump(t testing.TB, c *watchcache.Cache) *bytes.Buffer {
	t.Helper()
	var into bytes.Buffer
	if err := c.Dump(&into); err != nil {
		t.Fatal(err)
	}
	return &into
}

// restored returns a cache that was restored from a dump.
func restored(t testing.TB, from io.Reader, limits watchcache.Limits) *watchcache.Cache {
	t.Helper()
	c := watchcache.New(*watchcache.Pods, limits)
	_, publish, err := c.Restore(bufio.NewReader(from))
	if err != nil {
		t.Fatal(err)
	}
	publish()
	return c
}

// No file causes harm. A truncated dump is an error. A changed dump is an error or a valid state.
func FuzzRestore(f *testing.F) {
	whole := dumped(f)
	f.Add(whole)
	for _, cut := range []int{0, 1, 2, len(whole) / 2, len(whole) - 1} {
		f.Add(whole[:cut])
	}
	for at := 0; at < len(whole); at += max(1, len(whole)/40) {
		changed := bytes.Clone(whole)
		changed[at] ^= 0x5a
		f.Add(changed)
	}
	f.Fuzz(func(t *testing.T, dump []byte) {
		c := watchcache.New(*watchcache.Pods, watchcache.Limits{Age: time.Minute, Events: 1000, Bytes: 1 << 20})
		_, publish, err := c.Restore(bufio.NewReader(bytes.NewReader(dump)))
		if err != nil {
			if _, err := c.Snapshot(); !errors.Is(err, watchcache.ErrNotReady) {
				t.Errorf("a dump that was refused is there: %v", err)
			}
			return
		}
		publish()
		stats := c.Stats()
		for rv := stats.Since; rv <= stats.ResourceVersion && rv < stats.Since+100; rv++ {
			_, _ = c.SnapshotAt(rv)
		}
		if err := c.Dump(io.Discard); err != nil {
			t.Error(err)
		}
	})
}

// An empty cache cannot be dumped.
func TestDumpOfNothing(t *testing.T) {
	c := watchcache.New(*watchcache.Pods, watchcache.Limits{})
	if err := c.Dump(io.Discard); !errors.Is(err, watchcache.ErrNotReady) {
		t.Error(err)
	}
	c.End()
	if err := c.Dump(io.Discard); !errors.Is(err, watchcache.ErrEnded) {
		t.Error(err)
	}
}
