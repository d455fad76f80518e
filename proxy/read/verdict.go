package read

import (
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
)

// Verdict is what becomes of a request that the cache may answer: it is answered, or upstream has to.
type Verdict struct {
	Answer *exchange.Response // nil if upstream has to answer
	Reason Reason             // why it has to
	Timed  *Timed             // how long upstream takes is of interest; nil for most requests
	// Expired is the answer to a watch that is Early if upstream has enough of them.
	Expired *exchange.Response
}

// Reason is why upstream has to answer. As an error it ends the work on a read; a client never sees it.
type Reason string

// Error implements error.
func (r Reason) Error() string { return string(r) }

const (
	// Beyond is the answer to every doubt: upstream gives its own answer, or words its own error.
	Beyond Reason = "beyond the cache"
	// Stale reads would be answered by a cache that is up to date. They come in crowds.
	Stale Reason = "the cache is not up to date"
	// Lost is Stale, as upstream cannot be reached.
	Lost Reason = "upstream is lost"
	// Sooner is a list that upstream answers sooner.
	Sooner Reason = "upstream answers sooner"
	// Early is a watch from before the cache's history.
	Early Reason = "from before the cache's history"
)

// Stale tells whether a cache that is up to date would answer.
func (r Reason) Stale() bool { return r == Stale || r == Lost }

// Timed is a list that upstream answers instead of a cache, whose feed wants to know how long that takes.
type Timed struct {
	Feed  Feed
	Scope watchcache.Scope
}

// Takes is how long upstream takes, 0 if that is not known.
func (t *Timed) Takes() time.Duration {
	if t == nil {
		return 0
	}
	return t.Feed.Takes(t.Scope)
}
