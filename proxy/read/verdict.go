package read

import (
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
)

// Verdict is an answer from the cache, or the reason why upstream has to answer.
type Verdict struct {
	Answer *exchange.Response // nil if upstream has to answer
	Reason Reason             // why upstream has to answer
	Timed  *Timed             // set if the feed measures upstream's answer
	// Expired is the answer to an Early watch if too many are upstream.
	Expired *exchange.Response
}

// Reason is why upstream has to answer. It also ends the read as an error. No client sees it.
type Reason string

// Error implements error.
func (r Reason) Error() string { return string(r) }

const (
	// Beyond is the reason in every case of doubt: upstream answers, or returns its own error.
	Beyond Reason = "beyond the cache"
	// Stale is for a read that needs an up-to-date cache. Many such reads come at the same time.
	Stale Reason = "the cache is not up to date"
	// Lost is Stale because upstream is away.
	Lost Reason = "upstream is lost"
	// Sooner is a list that upstream answers sooner.
	Sooner Reason = "upstream answers sooner"
	// Early is a watch from before the cache's history.
	Early Reason = "from before the cache's history"
)

// Stale tells whether a cache that is up to date would answer.
func (r Reason) Stale() bool { return r == Stale || r == Lost }

// Timed is a list whose feed measures how long upstream takes for it.
type Timed struct {
	Feed  Feed
	Scope watchcache.Scope
}

// Takes is how long upstream takes, 0 if unknown.
func (t *Timed) Takes() time.Duration {
	if t == nil {
		return 0
	}
	return t.Feed.Takes(t.Scope)
}
