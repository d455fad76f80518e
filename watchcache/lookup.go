package watchcache

import (
	"bytes"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Version returns the version of an object that was written at rv. It returns nil if neither the
// newest state nor the log contains that version. It also returns the number of the state's epoch.
func (c *Cache) Version(key string, rv uint64) (o *object.Object, epoch uint64) {
	v := c.view.Load()
	if v == nil {
		return nil, 0
	}
	if o := v.newest().Get(key); o != nil && o.ResourceVersion() == rv {
		return o, v.epoch
	}
	for seq := v.after(max(rv, 1) - 1); seq < v.end && v.event(seq).RV == rv; seq++ {
		if e := v.event(seq); e.Object.Key() == key && (e.Type == Added || e.Type == Modified) {
			return e.Object, v.epoch
		}
	}
	if o := v.base.Get(key); o != nil && o.ResourceVersion() == rv {
		return o, v.epoch
	}
	return nil, v.epoch
}

// Known returns the cached object that equals o, bytes included. If there is none, it returns o.
func (c *Cache) Known(o *object.Object) *object.Object {
	was, _ := c.Version(o.Key(), o.ResourceVersion())
	if was != nil && was.UID() == o.UID() && bytes.Equal(was.Item(), o.Item()) {
		return was
	}
	return o
}

// Last returns the last content of an object that was deleted at rv, or that a relist after rv no
// longer contained. It returns nil if the log does not have that content.
func (c *Cache) Last(key string, rv uint64) (o *object.Object, epoch uint64) {
	v := c.view.Load()
	switch {
	case v == nil:
		return nil, 0
	case rv < v.since || rv > v.rv || v.inGap(rv):
		return nil, v.epoch
	}
	for seq := v.after(max(rv, 1) - 1); seq < v.end && v.event(seq).RV == rv; seq++ {
		if e := v.event(seq); e.Object.Key() == key && e.Type == Deleted && !e.jumped {
			return e.Object, v.epoch
		}
	}
	return v.treeAt(rv).Get(key), v.epoch
}
