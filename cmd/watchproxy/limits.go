package main

import (
	"bytes"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

const (
	// headerMax limits the request line and the headers of a request, in bytes.
	headerMax = 64 << 10
	// readTimeout limits the time for the headers of a request, and each pause within its body.
	readTimeout = 30 * time.Second
	// writeTimeout limits the time to read a part of a response that is not a stream.
	writeTimeout = time.Minute
	// idleTimeout is how long a connection stays open between requests.
	idleTimeout = 3 * time.Minute
)

// limits returns the limits of clients. There are memory and file descriptors for so many
// connections; 0 means no such limit. With authentication, a user may have half of the connections.
func limits(c *config.ProxyConfiguration, connections, descriptors int) exchange.Limits {
	l := c.Limits
	all := *l.MaxConnections
	if connections > 0 {
		all = min(all, connections)
	}
	limits := exchange.Limits{
		HeaderBytes: headerMax,
		Read:        readTimeout,
		Write:       writeTimeout,
		Idle:        idleTimeout,
		Stall:       c.Cache.Log.MaxAge.Duration,
		Connections: all,
		UserWatches: *l.MaxWatchesPerIdentity,
		Forwards:    *l.MaxForwardsInFlight,
		Descriptors: descriptors,

		GoawayChance: c.GoawayChance,
	}
	limits.UserConnections, _ = limits.Crowd()
	if c.Authentication.Mode == config.Delegated {
		limits.UserConnections = max(1, limits.UserConnections/2)
	}
	return limits
}

const (
	// Clients' connections cannot use all file descriptors. Reserved for upstream, logs and the
	// admin address are an eighth, but at least descriptorsKept and one for each forwarded request
	// in flight, and at most half. A forwarded request without verified credentials has its own
	// connection to upstream, like an exec or a port-forward.
	descriptorsKept      = 64
	descriptorsKeptShare = 8
	// adminIdle is the maximum idle time of the admin address's connections, which use the reserve.
	adminIdle = time.Minute
)

// clientDescriptors returns the number of file descriptors for clients' connections beside so many
// forwarded requests. At the start, Go raises the soft limit of open files to the hard limit.
func clientDescriptors(forwards int) int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0 // 0 means unknown; then only a failing accept shows the limit
	}
	const most = 1 << 30
	return forClients(int(min(limit.Cur, most)), forwards) //nolint:gosec // at most 1<<30
}

func forClients(descriptors, forwards int) int {
	kept := max(descriptorsKept+min(forwards, descriptors), descriptors/descriptorsKeptShare)
	return max(descriptors/2, descriptors-kept)
}

// connectionErrors logs net/http's errors about connections of the admin address, such as failed
// handshakes. Any client can cause them, so at most one error in 10 s is logged.
type connectionErrors struct{ log *zap.Logger }

func (e connectionErrors) Write(line []byte) (int, error) {
	e.log.Warn("a connection to the admin address failed",
		zap.String("error", string(bytes.TrimSpace(line))))
	return len(line), nil
}
