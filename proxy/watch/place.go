package watch

import (
	"github.com/watchproxy/watchproxy/proxy/grants"
	"github.com/watchproxy/watchproxy/watchcache"
)

// place is how far a watch has read the cache's log, and how far its grants let it read on.
type place struct {
	cursor *watchcache.Cursor
	grants *grants.Watch // nil if the client may read all namespaces
	waits  bool          // for a decision of grants
}

// poll is Cursor.Poll. It fails if the grants were over after the poll. If there is no decision on
// the namespace of the next event, it asks for one, and the watch waits until it is woken.
func (p *place) poll(
	into []watchcache.Delta, limit, bytes int,
) (deltas []watchcache.Delta, position uint64, err error) {
	deltas, position, err = p.cursor.Poll(into, limit, bytes)
	p.waits = false
	switch {
	case p.grants == nil || err != nil:
	case p.grants.Over(): // see package grants
		err = grants.ErrChanged
	case len(deltas) == 0 && p.cursor.Undecided() != "":
		p.waits = true
		p.grants.Ask(p.cursor.Undecided())
	}
	return deltas, position, err
}

func (p *place) close() {
	if p.grants != nil {
		p.grants.Close()
	}
	p.cursor.Close()
}
