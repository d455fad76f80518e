package exchange

import "time"

// Limits bound what clients may take.
type Limits struct {
	// HeaderBytes bounds the request line and headers. URIBytes bounds path and query. BodyBytes
	// bounds the body of a forwarded request.
	HeaderBytes, URIBytes int
	BodyBytes             int64
	// Read bounds the time for headers and pauses in a body. Write bounds the time that a part of
	// an answer stays unread. Idle bounds the time between requests.
	Read, Write, Idle time.Duration
	// Connections bounds all connections. UserConnections and UserWatches apply to each user.
	Connections, UserConnections, UserWatches int
	// Descriptors bounds all connections too, refused ones included; 0 for no bound.
	Descriptors int
	// Forwards bounds the requests upstream at a time, except for watches, logs and exec. Requests
	// beyond the bound wait for their user's turn.
	Forwards int
}

// crowdMax is how many connections beyond the limit get an answer. Further connections are closed.
const crowdMax = 1000

// Crowd returns how many connections are served, and how many may be open. A client between these
// two numbers gets a 429. One in eight descriptors is reserved for such clients.
func (l Limits) Crowd() (most, all int) {
	const share = 8
	most, all = l.Connections, l.Connections+crowdMax
	if l.Descriptors > 0 {
		most = min(most, l.Descriptors-l.Descriptors/share)
		all = min(all, l.Descriptors)
	}
	return most, all
}
