package read

import (
	"errors"
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

// Reason is why upstream has to answer, for metrics. It also ends the read as an error.
type Reason string

// Error implements error.
func (r Reason) Error() string { return string(r) }

// The reasons.
const (
	NotARead    Reason = "not-a-read"      // not a get, list or watch of objects
	Credentials Reason = "credentials"     // upstream has to judge the client or the impersonated user
	Uncached    Reason = "not-cached"      // the resource is excluded, lacks list and watch, or is forbidden to the proxy
	Parameters  Reason = "parameters"      // unknown, malformed, or combined in an unusual way
	Form        Reason = "form"            // of Accept, or the objects cannot be written in it
	Table       Reason = "table"           // its rows are not understood
	MostRecent  Reason = "most-recent"     // upstream answers at less cost
	Page        Reason = "page"            // upstream alone can write its continue token
	TooOld      Reason = "too-old"         // from before the cache's history
	TooLarge    Reason = "too-large"       // the answer takes too much memory to make
	Stale       Reason = "not-up-to-date"  // an up-to-date cache would answer; many such reads come at once
	Lost        Reason = "upstream-lost"   // the same, because upstream is lost
	Sooner      Reason = "upstream-sooner" // upstream usually answers such a list faster
	Early       Reason = "too-old-watch"   // begins before the cache's history
)

// reasonOf returns the reason in an error, or an empty one.
func reasonOf(err error) Reason {
	reason, _ := errors.AsType[Reason](err)
	return reason
}

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
