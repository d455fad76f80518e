//go:build !linux

package listen

// limitUnsent needs Linux.
func (*socket) limitUnsent() {}
