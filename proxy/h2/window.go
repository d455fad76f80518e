package h2

// leastMost limits Least, in bytes.
const leastMost = 64 << 10

// least returns the window from which it is worth to send, for a sender that has left bytes to send
// (RFC 9293, 3.8.6.2.1). stream and conn are the windows that the client gives a stream and its
// connection when it has read everything. A client may give window back only when half of it is
// used, so half of a window must be enough.
func least(left int, stream, conn int64) int64 {
	return max(1, min(int64(left), leastMost, stream/2, conn/2))
}
