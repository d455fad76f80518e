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
	// Expired is the answer to an Early watch if too many such watches are upstream.
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
	// Lost is for a read that is stale because upstream is lost.
	Lost Reason = "upstream is lost"
	// Sooner is for a list that upstream usually answers faster.
	Sooner Reason = "upstream answers sooner"
	// Early is for a watch that begins before the cache's history.
	Early Reason = "from before the cache's history"
)

// Stale tells whether an up-to-date cache would answer.
func (r Reason) Stale() bool { return r == Stale || r == Lost }

// Timed is a list whose feed measures how long upstream takes for it.
type Timed struct {
	Feed  Feed
	Scope watchcache.Scope
}

// Takes is the time that upstream takes, 0 if unknown.
func (t *Timed) Takes() time.Duration {
	if t == nil {
		return 0
	}
	return t.Feed.Takes(t.Scope)
}
