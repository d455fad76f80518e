package exchange

import "time"

// Limits bound the resources that clients may use.
type Limits struct {
	// HeaderBytes limits the request line and headers.
	HeaderBytes int
	// Read limits the time for headers and for each pause in a body. Write limits the time for
	// which a part of a response may stay unread. Idle limits the time between requests.
	Read, Write, Idle time.Duration
	// Stall is the time for which a client may leave a watch unread before it is disconnected.
	Stall time.Duration
	// GoawayChance is the probability, from 0 to 1, that a request over HTTP/2 ends its connection
	// with GOAWAY. Clients then connect again, and so are distributed among replicas.
	GoawayChance float64
	// Connections limits all connections. UserConnections and UserWatches apply to each user.
	Connections, UserConnections, UserWatches int
	// Descriptors also limits all connections, including connections that only receive a 429; 0
	// means no limit.
	Descriptors int
	// Forwards limits the number of forwarded requests that are upstream at a time, except watches,
	// logs, exec and the like. Requests beyond the limit wait for their user's turn.
	Forwards int
}

// crowdMax limits the connections above the limit that get a response. Others are closed.
const crowdMax = 1000

// Crowd returns how many connections are served, and how many may be open. Those in between receive
// a 429. One in eight descriptors is reserved for them.
func (l Limits) Crowd() (most, all int) {
	const share = 8
	most, all = l.Connections, l.Connections+crowdMax
	if l.Descriptors > 0 {
		most = min(most, l.Descriptors-l.Descriptors/share)
		all = min(all, l.Descriptors)
	}
	return most, all
}
