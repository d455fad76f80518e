package fresh

import "github.com/watchproxy/watchproxy/watchcache/upstream/feed"

// outcome is how a run ended, and what follows from that.
type outcome struct {
	name  string // in metrics
	shown shown
	tells tells
}

// The proofs, in the order in which a run tries them, and the other ends of a run. Where a list
// costs upstream no more than the requests that it replaces, it comes first.
var (
	current   = &outcome{"current", ifAsked, isQuick} // the cache had reached the revision already
	carried   = &outcome{"ledger", never, isQuick}
	streamed  = &outcome{"stream", ifAsked, isQuick}
	listed    = &outcome{"list", always, isQuick} // a list is no slower than the read itself
	confirmed = &outcome{"metadata", always, isSlow}
	caughtUp  = &outcome{"side-watch", always, isSlow}

	shared = &outcome{"shared", never, nothing} // it waited for another run, which may have been slow
	moved  = &outcome{"moved", never, nothing}  // it only checked, and found that the cache is not current
	failed = &outcome{"failed", never, isInVain}
)

// byMeans has the outcomes of [feed.Feed.CatchUp].
var byMeans = map[feed.Means]*outcome{feed.ByList: listed, feed.ByMetadata: confirmed, feed.BySideWatch: caughtUp}

// shown says whether upstream itself has shown the state.
type shown int

const (
	never   shown = iota
	ifAsked       // if the probe was for the resource itself
	always
)

// tells is what the duration of a run says of the next ones.
type tells int

const (
	nothing  tells = iota
	isQuick        // it took no longer than the read itself would
	isSlow         // help took this time
	isInVain       // help failed after this time
)
