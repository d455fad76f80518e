package config

// Limits are the limits for clients. A request beyond a limit gets a Status. If a retry helps, the
// code is 429, with Retry-After. Other clients are not affected.
type Limits struct {
	// MaxConnections limits the connections of all clients together. Half of memoryBudget, at 28
	// KiB for each, and the limit of open files limit them, too. With authentication, one user has
	// at most half of them.
	MaxConnections *int `json:"maxConnections,omitempty" default:"100000" min:"1" reload:"yes"`
	// MaxWatchesPerIdentity limits the long-running requests of one user: watches, forwarded logs,
	// and upgraded requests as exec, attach and port-forward. Without authentication, all clients
	// count as one user.
	MaxWatchesPerIdentity *int `json:"maxWatchesPerIdentity,omitempty" default:"50000" min:"1" reload:"yes"`
	// MaxForwardsInFlight limits the forwarded requests in flight upstream. With authentication, a
	// user may have no more than stay free: one user has half of them, two have a third each.
	// Further requests wait for their user's turn, for at most a minute or until the client gives
	// up. Then they get 429. Watches, logs, exec and similar requests do not count.
	MaxForwardsInFlight *int `json:"maxForwardsInFlight,omitempty" default:"400" min:"1"`
}
