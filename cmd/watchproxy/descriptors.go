package main

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/net/netutil"
)

const (
	// An eighth of the file descriptors, and at least descriptorsKept, are reserved for connections
	// to upstream, saved caches, logs and the admin address. Clients' connections cannot use them.
	// An exec or a port-forward takes one of them for its connection to upstream.
	descriptorsKept      = 64
	descriptorsKeptShare = 8
	// adminConnections bounds the open connections of the admin address; further ones wait. They
	// use the reserved descriptors.
	adminConnections = 32
	// adminIdle bounds the idle time of such a connection.
	adminIdle = time.Minute
)

// clientDescriptors returns the number of file descriptors for clients' connections. At start, Go
// raises the soft limit of open files to the hard limit.
func clientDescriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0 // unknown, so that only a failing accept shows the limit
	}
	const most = 1 << 30
	return forClients(int(min(limit.Cur, most))) //nolint:gosec // at most 1<<30
}

func forClients(descriptors int) int {
	return max(descriptors/2, descriptors-max(descriptorsKept, descriptors/descriptorsKeptShare))
}

// forOperators bounds the connections of the admin address.
func forOperators(l net.Listener) net.Listener { return netutil.LimitListener(l, adminConnections) }
