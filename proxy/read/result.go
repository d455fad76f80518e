package read

import (
	"errors"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// Result is a response from the cache, or the reason why upstream must answer.
type Result struct {
	Response *exchange.Response // nil if upstream must answer
	Reason   Reason             // why upstream must answer
	// Expired is the response to a watch that is too old, if upstream must not answer it.
	Expired *exchange.Response
}

// Reason says why upstream must answer, for metrics. It is also the error that ends the read.
type Reason string

// Error implements error.
func (r Reason) Error() string { return string(r) }

// The reasons for which reads are forwarded.
const (
	NotARead    Reason = "not-a-read"     // not a get, list or watch of objects
	Credentials Reason = "credentials"    // upstream must judge the client or its impersonation
	Uncached    Reason = "not-cached"     // excluded, unwatchable, or forbidden to the proxy
	Parameters  Reason = "parameters"     // unknown, malformed, or combined in an unusual way
	OtherForm   Reason = "form"           // of Accept: unsupported, or the objects do not allow it
	OtherTable  Reason = "table"          // the rows of the Table are not understood
	MostRecent  Reason = "most-recent"    // upstream answers at less cost
	Page        Reason = "page"           // only upstream can write the continue token
	TooOld      Reason = "too-old"        // before the cache's history
	TooLarge    Reason = "too-large"      // making the response needs too much memory
	Stale       Reason = "not-up-to-date" // the cache is out of date; many such reads may come
	NoProgress  Reason = "no-progress"    // like Stale, but the cache may soon be up to date
	Lost        Reason = "upstream-lost"  // like Stale, because upstream is lost
	TooOldWatch Reason = "too-old-watch"  // a watch that starts before the cache's history
)

func reasonOf(err error) Reason {
	reason, _ := errors.AsType[Reason](err)
	return reason
}

// Stale reports whether an up-to-date cache would answer.
func (r Reason) Stale() bool { return r == Stale || r == NoProgress || r == Lost }
