package exchange

import "time"

// Limits bound the resources that clients may use.
type Limits struct {
	// HeaderBytes bounds the request line and headers. URIBytes bounds path and query. BodyBytes
	// bounds the body of a forwarded request.
	HeaderBytes, URIBytes int
	BodyBytes             int64
	// Read bounds the time for headers and for each pause in a body. Write bounds the time for
	// which a part of an answer may stay unread. Idle bounds the time between requests.
	Read, Write, Idle time.Duration
	// Connections bounds all connections. UserConnections and UserWatches apply to each user.
	Connections, UserConnections, UserWatches int
	// Descriptors also bounds all connections, including those that get only a 429; 0 means no
	// bound.
	Descriptors int
	// Forwards bounds how many forwarded requests are upstream at a time, except watches, logs,
	// exec and the like. Requests beyond the bound wait for their user's turn.
	Forwards int
}

// crowdMax is the number of connections above the limit that get an answer. Further connections are
// closed.
const crowdMax = 1000

// Crowd returns the number of connections that are served, and the number that may be open.
// Connections between these two numbers get a 429. One in eight descriptors is reserved for them.
func (l Limits) Crowd() (most, all int) {
	const share = 8
	most, all = l.Connections, l.Connections+crowdMax
	if l.Descriptors > 0 {
		most = min(most, l.Descriptors-l.Descriptors/share)
		all = min(all, l.Descriptors)
	}
	return most, all
}
