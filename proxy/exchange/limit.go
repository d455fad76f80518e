package exchange

import "time"

// Limits bound what clients may take.
type Limits struct {
	// HeaderBytes bounds the request line and headers, URIBytes path and query, BodyBytes the
	// body of a forwarded request.
	HeaderBytes, URIBytes int
	BodyBytes             int64
	// Read bounds the time for headers and pauses in a body, Write the time that a part of an answer
	// stays unread, Idle the time between requests.
	Read, Write, Idle time.Duration
	// Connections bounds all connections; the others count for a user.
	Connections, UserConnections, UserWatches int
	// Descriptors bounds all connections too, refused ones included; 0 for no bound.
	Descriptors int
	// Forwards bounds the requests upstream at a time, except for watches, logs and exec. Others
	// wait for their user's turn.
	Forwards int
}

// crowdMax is how many connections beyond the limit get an answer. Further ones are closed.
const crowdMax = 1000

// Crowd returns how many connections are served, and how many may be open. The clients in between
// get a 429. One in eight descriptors is for those.
func (l Limits) Crowd() (most, all int) {
	const share = 8
	most, all = l.Connections, l.Connections+crowdMax
	if l.Descriptors > 0 {
		most = min(most, l.Descriptors-l.Descriptors/share)
		all = min(all, l.Descriptors)
	}
	return most, all
}
