package cachetest

import (
	"time"
	"unsafe"
)

// BeforeSleep returns the present time, less a sleep of the machine: the wall clock has advanced
// since then, and the monotonic clock has stood still. The test must not run in a bubble, where
// times have no monotonic reading.
func BeforeSleep(sleep time.Duration) time.Time {
	at := time.Now().Add(-sleep)
	// A time with a monotonic reading has it in its second word.
	monotonic := (*int64)(unsafe.Add(unsafe.Pointer(&at), unsafe.Sizeof(uint64(0))))
	*monotonic += int64(sleep)
	return at
}
