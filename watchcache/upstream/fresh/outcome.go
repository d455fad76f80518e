package fresh

import "github.com/watchproxy/watchproxy/watchcache/upstream/feed"

// outcome is how a run ended, and what follows from that.
type outcome struct {
	name  string // in metrics
	shown shown
}

// The proofs, in the order in which a run tries them, and the other ends of a run. Where a list
// costs upstream no more than the requests that it replaces, it comes first.
var (
	current  = &outcome{"current", ifAsked} // the cache had reached the revision already
	carried  = &outcome{"ledger", never}
	streamed = &outcome{"stream", ifAsked}
	listed   = &outcome{"list", always}
	caughtUp = &outcome{"side-watch", always}

	shared = &outcome{"shared", never} // it waited for another run
	failed = &outcome{"failed", never}
)

// byMeans has the outcomes of [feed.Feed.CatchUp].
var byMeans = map[feed.Means]*outcome{feed.ByList: listed, feed.BySideWatch: caughtUp}

// shown says whether upstream itself has shown the state.
type shown int

const (
	never   shown = iota
	ifAsked       // if the probe was for the resource itself
	always
)
