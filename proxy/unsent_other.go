//go:build !linux

package proxy

// limitUnsent needs Linux.
func (*socket) limitUnsent() {}
