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

// Reason is why upstream has to answer. It also ends the read as an error. Metrics show it.
type Reason string

// Error implements error.
func (r Reason) Error() string { return string(r) }

const (
	// NotARead is the reason for everything but gets, lists and watches of objects.
	NotARead Reason = "not-a-read"
	// Credentials is for a client or an impersonated user that upstream has to judge.
	Credentials Reason = "credentials"
	// Uncached is for a resource without a cache: excluded, without list and watch, or forbidden to
	// the proxy.
	Uncached Reason = "not-cached"
	// Parameters is for parameters that are unknown, malformed or combined in an unusual way.
	Parameters Reason = "parameters"
	// Form is for an Accept header, or for objects that cannot be written in that form.
	Form Reason = "form"
	// Table is for Tables whose rows are not known or not understood.
	Table Reason = "table"
	// MostRecent is for a read of the most recent state that upstream answers at less cost.
	MostRecent Reason = "most-recent"
	// Page is for a page whose continue token upstream alone can write.
	Page Reason = "page"
	// TooOld is for a state from before the cache's history.
	TooOld Reason = "too-old"
	// TooLarge is for an answer that takes too much memory to make.
	TooLarge Reason = "too-large"
	// Stale is for a read that needs an up-to-date cache. Many such reads come at the same time.
	Stale Reason = "not-up-to-date"
	// Lost is for a read that is stale because upstream is lost.
	Lost Reason = "upstream-lost"
	// Sooner is for a list that upstream usually answers faster.
	Sooner Reason = "upstream-sooner"
	// Early is for a watch that begins before the cache's history.
	Early Reason = "too-old-watch"
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
