package exchange

import "time"

// Limits bound what clients may take.
type Limits struct {
	// HeaderBytes bounds the request line and headers, URIBytes the path and query,
	// BodyBytes the body of a forwarded request.
	HeaderBytes, URIBytes int
	BodyBytes             int64
	// Read bounds the time in which headers arrive, and pauses within a body; Write
	// how long a part of an answer stays unread; Idle the time between requests.
	Read, Write, Idle time.Duration
	// Connections of all clients, and what a user may have open.
	Connections, UserConnections, UserWatches int
	// Descriptors bounds the connections as well, those that are told so included; 0 for no
	// bound.
	Descriptors int
	// Forwards are the forwarded requests that upstream has at a time, without those
	// that last: watches, logs, exec. Further ones wait for their user's turn.
	Forwards int
}

// crowdMax is how many connections more than there should be are told so. Further
// ones are closed.
const crowdMax = 1000

// Crowd returns how many connections there should be, and how many there may be: the clients
// between the two are told that there are too many. One in eight descriptors is for those.
func (l Limits) Crowd() (most, all int) {
	const share = 8
	most, all = l.Connections, l.Connections+crowdMax
	if l.Descriptors > 0 {
		most = min(most, l.Descriptors-l.Descriptors/share)
		all = min(all, l.Descriptors)
	}
	return most, all
}
