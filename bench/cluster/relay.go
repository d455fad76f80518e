package cluster

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Relay passes connections on to a server. It can cut, reset, freeze, slow down, truncate and
// corrupt them. The well-known relay for such tests cannot corrupt data or leave a
// connection half-open, and it is a separate server.
type Relay struct {
	Sent atomic.Int64 // bytes that the server has sent

	listener net.Listener
	to       func() string
	running  sync.WaitGroup
	frozen   sync.RWMutex // locked for writing while the relay is frozen

	mu struct {
		sync.Mutex
		cut     bool
		pairs   map[*pair]struct{}
		latency time.Duration
		pace    int // bytes/s, 0 means no limit
		left    int // bytes that the server may still send before Cut; 0 means no limit
	}
}

// Damage is a change to the next data that the server sends, once on each connection.
type Damage int

// The kinds of damage.
const (
	Undamaged Damage = iota
	Truncated
	Corrupted
)

// pair is a client's connection and the relay's connection to the server.
type pair struct {
	near, far net.Conn
	damage    Damage // guarded by Relay.mu
}

// StartRelay starts a relay. For each connection it calls to, which returns the destination. If to
// returns "", the connection is refused.
func StartRelay(to func() string) (*Relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("cannot listen for a relay: %w", err)
	}
	r := &Relay{listener: l, to: to}
	r.mu.pairs = map[*pair]struct{}{}
	r.running.Go(r.accept)
	return r, nil
}

// RelayT starts a relay that ends with the test.
func RelayT(tb testing.TB, to func() string) *Relay {
	tb.Helper()
	r, err := StartRelay(to)
	MustT(tb, err)
	tb.Cleanup(r.Close)
	return r
}

// Close cuts all connections and ends the relay.
func (r *Relay) Close() {
	_ = r.listener.Close()
	r.Cut()
	r.running.Wait()
}

// Address returns the address of the relay.
func (r *Relay) Address() string { return r.listener.Addr().String() }

func (r *Relay) accept() {
	for {
		near, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.running.Go(func() { r.join(near) })
	}
}

func (r *Relay) join(near net.Conn) {
	defer near.Close() //nolint:errcheck // the client notices errors itself
	to := r.to()
	if to == "" {
		return
	}
	far, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer far.Close() //nolint:errcheck // the server notices errors itself
	p := &pair{near: near, far: far}
	if !r.keep(p) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() { r.pass(p, near, far, true) })
	r.pass(p, far, near, false)
	back.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.pairs, p)
}

// keep adds a pair to the open connections. It returns false if the relay is cut.
func (r *Relay) keep(p *pair) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.mu.cut {
		r.mu.pairs[p] = struct{}{}
	}
	return !r.mu.cut
}

// pass copies data in one direction. At the end of the data, it closes that direction; an error
// ends both connections. A server that no longer accepts data may still send data.
func (r *Relay) pass(p *pair, to, from net.Conn, answers bool) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if err == io.EOF { //nolint:errorlint // a clean end is not wrapped
			_ = to.(*net.TCPConn).CloseWrite()
			return
		}
		if err == nil && r.write(p, to, buf[:n], answers) {
			continue
		}
		if err != nil || answers {
			_, _ = to.Close(), from.Close()
		}
		return
	}
}

// write passes data on after the delay. It returns false if no more data may follow.
func (r *Relay) write(p *pair, to net.Conn, b []byte, answers bool) bool {
	r.mu.Lock()
	damage, delay := Undamaged, r.mu.latency
	if answers {
		damage, p.damage = p.damage, Undamaged
	}
	if r.mu.pace > 0 {
		delay += time.Duration(len(b)) * time.Second / time.Duration(r.mu.pace)
	}
	last := answers && r.mu.left > 0 && r.mu.left <= len(b)
	if last {
		b = b[:r.mu.left]
	}
	if answers {
		r.mu.left = max(0, r.mu.left-len(b))
		r.Sent.Add(int64(len(b)))
	}
	r.mu.Unlock()
	time.Sleep(delay)
	if last {
		defer r.Cut()
	}

	r.frozen.RLock()
	defer r.frozen.RUnlock()
	switch damage {
	case Truncated:
		b = b[:len(b)/2]
	case Corrupted:
		b[len(b)/2] ^= 0x20
	case Undamaged:
	}
	_, err := to.Write(b)
	return err == nil && damage != Truncated
}

// Cut cuts all connections and accepts no new ones until Mend.
func (r *Relay) Cut() {
	r.mu.Lock()
	r.mu.cut = true
	r.mu.Unlock()
	r.End(false)
}

// CutAfter lets the server send n more bytes on all connections together, and then cuts them.
func (r *Relay) CutAfter(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.left = n
}

// Mend accepts connections again.
func (r *Relay) Mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.cut = false
}

// Freeze stops all data until Thaw. A frozen relay cannot end.
func (r *Relay) Freeze() { r.frozen.Lock() }

// Thaw lets data pass again after Freeze.
func (r *Relay) Thaw() { r.frozen.Unlock() }

func (r *Relay) each(do func(*pair)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.mu.pairs {
		do(p)
	}
}

// End ends all connections, either by a reset or by a normal close.
func (r *Relay) End(reset bool) {
	r.each(func(p *pair) {
		for _, c := range []net.Conn{p.near, p.far} {
			if reset {
				_ = c.(*net.TCPConn).SetLinger(0)
			}
			_ = c.Close()
		}
	})
}

// HalfClose closes the direction from the client to the server on all connections.
func (r *Relay) HalfClose() {
	r.each(func(p *pair) { _ = p.far.(*net.TCPConn).CloseWrite() })
}

// Damage damages the server's next data on each open connection.
func (r *Relay) Damage(how Damage) { r.each(func(p *pair) { p.damage = how }) }

// Slow delays all data by a latency and limits them to a pace in bytes/s. Pace 0 means no limit.
func (r *Relay) Slow(latency time.Duration, pace int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.latency, r.mu.pace = latency, pace
}
