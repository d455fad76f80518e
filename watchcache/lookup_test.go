package watchcache_test

import (
	"fmt"
	"testing"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Version finds an object's version while the log has it, regardless of later changes. Last finds
// the content of a deleted object.
func TestVersions(t *testing.T) {
	c := filled(1)
	r := watchcache.Random(t)
	rv := c.Stats().Newest
	type version struct {
		key string
		rv  uint64
	}
	written, gone, latest := map[version]*object.Object{}, map[version]*object.Object{}, map[string]*object.Object{}
	for range 500 {
		rv++
		o := pod(fmt.Sprint(r.IntN(10)), rv).Object()
		was := latest[o.Key()]
		change := watchcache.Change{Object: o, Deleted: was != nil && r.IntN(3) == 0}
		watchcache.Apply(t, c, change)
		at := version{o.Key(), rv}
		if change.Deleted {
			gone[at], latest[o.Key()] = o, nil
		} else {
			written[at], latest[o.Key()] = o, o
		}
	}
	for at, want := range written {
		if got := first(c.Version(at.key, at.rv)); got != want {
			t.Errorf("%v: %v instead of %v", at, got, want)
		}
	}
	for at, want := range gone {
		if got := first(c.Last(at.key, at.rv)); got != want {
			t.Errorf("%v, gone: %v instead of %v", at, got, want)
		}
	}
	for i := range 20 {
		key, at := fmt.Sprint("a/none-", i), rv-uint64(i)
		if first(c.Version(key, at)) != nil || first(c.Last(key, at)) != nil {
			t.Errorf("%s was never written", key)
		}
	}
}

func first(o *object.Object, _ uint64) *object.Object { return o }
