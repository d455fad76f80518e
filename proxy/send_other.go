//go:build !linux || 386 || s390x

package proxy

import "syscall"

// trySend writes what the kernel takes at once. The file descriptor must be one that does not block.
func trySend(fd uintptr, p []byte) (n int, err error) { return syscall.Write(int(fd), p) }
