package conn

import (
	"net"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// Account says whose a connection is, and counts what the connection holds.
type Account struct {
	remote net.Addr
	heads  *Heads // nil counts nothing
	head   headCount

	mu struct {
		sync.Mutex
		closed  bool
		user    string    // the user against whose limit this connection counts
		counted func()    // ends the count; nil if no user's limit counts the connection
		shook   headCount // what TLS keeps of a stranger's handshake
	}
}

// holdAs counts the connection against a user's limit. It also reports whether the connection was a
// stranger's.
func (a *Account) holdAs(user string, take func() (giveBack func(), ok bool)) (first, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.closed || a.mu.counted != nil && a.mu.user == user {
		return false, true // a handler may outlive its connection
	}
	counted, ok := take()
	if !ok {
		return false, false
	}
	if first = a.mu.counted == nil; !first {
		a.mu.counted()
	}
	a.mu.shook.end() // a user has few connections
	a.mu.user, a.mu.counted = user, counted
	return first, true
}

// Known reports whether a user's limit counts the connection: a request of it was authenticated.
func (a *Account) Known() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.counted != nil
}

func (a *Account) user() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.user
}

// HeadGrows counts a head of size bytes. It returns false if there is no room for the head.
func (a *Account) HeadGrows(size int64) bool {
	h := &a.head
	more := size - headFree - h.size
	if a.heads == nil || more <= 0 {
		return true
	}
	if h.size == 0 {
		h.from, h.who = a.pool(a.heads.Users)
	}
	if !h.from.Try(h.who, more) {
		return false
	}
	h.size += more
	return true
}

// HeadEnds says that a head is complete, or that the connection ends.
func (a *Account) HeadEnds() { a.head.end() }

// handshakeEnds keeps the count of a handshake until the client is known or leaves.
func (a *Account) handshakeEnds() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.shook, a.head = a.head, headCount{}
}

// UnreadIn returns the part that counts the client's unread bytes, and the client. The part is nil
// if there is no bound.
func (a *Account) UnreadIn() (part *fair.Pool, who string) {
	if a.heads == nil {
		return nil, ""
	}
	return a.pool(a.heads.Unread)
}

// Unread are the bytes that a connection's client leaves unread. Without room, writes fail.
type Unread struct{ Conn *Conn }

// UnreadIn implements fair.Unread.
func (u Unread) UnreadIn() (*fair.Pool, string) { return u.Conn.Account.UnreadIn() }

// RefuseUnread implements fair.Unread.
func (u Unread) RefuseUnread() { u.Conn.LimitWrites(time.Now()) }

// pool returns the part that counts what a connection holds, which is users if the client is known.
func (a *Account) pool(users *fair.Pool) (part *fair.Pool, who string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.counted != nil {
		return users, a.mu.user
	}
	return a.heads.Strangers, access.Network(a.remote.String())
}

func (a *Account) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.closed = true
	if a.mu.counted != nil {
		a.mu.counted()
		a.mu.counted = nil
	}
	a.mu.shook.end()
}
