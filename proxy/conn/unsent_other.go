//go:build !linux

package conn

// limitUnsent needs Linux.
func (*socket) limitUnsent() {}
