package faults

import (
	"io"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"
)

// relay passes connections on to a server, as well as it is let.
type relay struct {
	listener net.Listener
	to       string
	running  sync.WaitGroup
	frozen   sync.RWMutex // held while nothing passes

	mu struct {
		sync.Mutex
		refusing bool
		pairs    map[*pair]struct{}
		latency  time.Duration
		pace     int         // bytes/s, 0 for as fast as it goes
		vain     []time.Time // connections that led nowhere
	}
}

// spoil is what happens to what the server says next, once on each connection.
type spoil int

const (
	unspoilt spoil = iota
	truncated
	corrupted
)

// pair is a connection and the one that goes on from it.
type pair struct {
	near, far net.Conn
	spoil     spoil // guarded by relay.mu
}

func startRelay(t *testing.T, to string) *relay {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: l, to: target.Host}
	r.mu.pairs = map[*pair]struct{}{}
	r.running.Go(r.accept)
	t.Cleanup(func() {
		l.Close()
		r.end(false)
		r.running.Wait()
	})
	return r
}

// url is the relay's own, of the scheme of what stands behind.
func (r *relay) url(scheme string) string { return scheme + "://" + r.listener.Addr().String() }

func (r *relay) accept() {
	for {
		near, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.running.Go(func() { r.join(near) })
	}
}

func (r *relay) join(near net.Conn) {
	defer near.Close()
	r.mu.Lock()
	refusing := r.mu.refusing
	r.mu.Unlock()
	if refusing {
		return
	}
	far, err := net.Dial("tcp", r.to)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.mu.vain = append(r.mu.vain, time.Now())
		return
	}
	defer far.Close()
	p := &pair{near: near, far: far}
	r.mu.Lock()
	r.mu.pairs[p] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.mu.pairs, p)
	}()
	r.running.Go(func() {
		defer near.Close()
		defer far.Close()
		r.pass(p, near, far, true)
	})
	r.pass(p, far, near, false)
}

// pass copies what comes. Answers are what the server says.
func (r *relay) pass(p *pair, to, from net.Conn, answers bool) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		what := unspoilt
		r.mu.Lock()
		if answers {
			what, p.spoil = p.spoil, unspoilt
		}
		latency, pace := r.mu.latency, r.mu.pace
		r.mu.Unlock()
		if pace > 0 {
			latency += time.Duration(n) * time.Second / time.Duration(pace)
		}
		time.Sleep(latency)
		r.frozen.RLock()
		switch what {
		case truncated:
			n /= 2
		case corrupted:
			buf[n/2] ^= 0x20
		}
		_, err = to.Write(buf[:n])
		r.frozen.RUnlock()
		if err != nil || what == truncated {
			return
		}
	}
}

// refused returns when connections came while the server took none.
func (r *relay) refused() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.mu.vain)
}

// refuse closes new connections at once, or takes them again.
func (r *relay) refuse(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.refusing = on
}

// end ends all connections, by a reset or in an orderly way.
func (r *relay) end(reset bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.mu.pairs {
		for _, c := range []net.Conn{p.near, p.far} {
			if tcp, ok := c.(*net.TCPConn); ok && reset {
				_ = tcp.SetLinger(0)
			}
			c.Close()
		}
	}
}

// halfClose says on all connections that the client will say nothing more.
func (r *relay) halfClose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.mu.pairs {
		if tcp, ok := p.far.(interface{ CloseWrite() error }); ok {
			_ = tcp.CloseWrite()
		}
	}
}

// ruin spoils what comes next on each open connection.
func (r *relay) ruin(how spoil) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.mu.pairs {
		p.spoil = how
	}
}

// slow delays what passes.
func (r *relay) slow(latency time.Duration, pace int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.latency, r.mu.pace = latency, pace
}

// A relay passes everything unless told otherwise.
func TestRelay(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	r := startRelay(t, "http://"+l.Addr().String())
	echo := func() (string, error) {
		c, err := net.Dial("tcp", r.listener.Addr().String())
		if err != nil {
			return "", err
		}
		defer c.Close()
		if _, err := io.WriteString(c, "hello"); err != nil {
			return "", err
		}
		got := make([]byte, 5)
		n, err := io.ReadFull(c, got)
		return string(got[:n]), err
	}
	if got, err := echo(); got != "hello" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	r.refuse(true)
	if got, err := echo(); err == nil {
		t.Errorf("refused: %q", got)
	}
	r.refuse(false)
	if got, err := echo(); got != "hello" || err != nil {
		t.Errorf("then %q, %v", got, err)
	}
}
