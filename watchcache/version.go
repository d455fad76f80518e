package watchcache

import "github.com/watchproxy/watchproxy/watchcache/object"

// Version returns the version of an object that was written at rv, or nil if the cache does not
// have it. If gone is true, the object was deleted or replaced at rv, and Version returns its last
// content. It looks at the newest state and at the log.
func (c *Cache) Version(key string, rv uint64, gone bool) *object.Object {
	v := c.view.Load()
	if v == nil {
		return nil
	}
	if o := v.newest().Get(key); !gone && o != nil && o.ResourceVersion() == rv {
		return o
	}
	for seq := v.after(max(rv, 1) - 1); seq < v.end && v.event(seq).RV == rv; seq++ {
		switch e := v.event(seq); {
		case e.Object.Key() != key || e.Type == left:
		case (e.Type == Deleted) == gone:
			return e.Object
		case gone:
			return e.Prev
		}
	}
	if o := v.base.Get(key); !gone && o != nil && o.ResourceVersion() == rv {
		return o
	}
	return nil
}
