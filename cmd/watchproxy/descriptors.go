package main

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/net/netutil"
)

const (
	// An eighth of the file descriptors, and at least this number, is kept from clients'
	// connections. These descriptors are for connections to upstream, saved caches, logs and the
	// admin address. An exec or a port-forward takes one more, to upstream.
	descriptorsKept      = 64
	descriptorsKeptShare = 8
	// adminConnections is how many connections the admin address has at a time; further ones wait.
	// These connections use the kept descriptors.
	adminConnections = 32
	// adminIdle is how long one of them may be idle.
	adminIdle = time.Minute
)

// clientDescriptors returns how many file descriptors there are for clients' connections. Go has
// raised the limit to the hard one at start.
func clientDescriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0 // unknown: accept fails when there are no more
	}
	const most = 1 << 30
	return forClients(int(min(limit.Cur, most))) //nolint:gosec // it is small
}

func forClients(descriptors int) int {
	return max(descriptors/2, descriptors-max(descriptorsKept, descriptors/descriptorsKeptShare))
}

// forOperators bounds the connections of the admin address.
func forOperators(l net.Listener) net.Listener { return netutil.LimitListener(l, adminConnections) }
