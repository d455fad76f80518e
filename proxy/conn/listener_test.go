package conn

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/watchproxy/watchproxy/bench/conntest"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

// source is a listener whose Accept returns what comes next: an error, or a connection from an address. In
// the end it returns connections from a loopback address. It records the times of its calls.
type source struct {
	net.Listener
	next []any
	at   []time.Time
}

// Accept implements net.Listener.
func (s *source) Accept() (net.Conn, error) {
	s.at = append(s.at, time.Now())
	_, server := conntest.Pipe(1)
	if len(s.next) == 0 {
		return server, nil
	}
	next := s.next[0]
	s.next = s.next[1:]
	switch next := next.(type) {
	case error:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", next)}
	case string:
		server.Remote = net.TCPAddrFromAddrPort(netip.MustParseAddrPort(next))
	}
	return server, nil
}

func listenerOf(from net.Listener) (*Listener, *metrics.Metrics, *observer.ObservedLogs, chan struct{}) {
	core, logs := observer.New(zap.InfoLevel)
	metrics, ending := metrics.New(prometheus.NewRegistry()), make(chan struct{})
	return &Listener{
		Listener: from, Open: &Set{}, Ending: ending,
		Metrics: metrics, Log: zap.New(core),
	}, metrics, logs, ending
}

// admitted returns the next connection that is served.
func (l *Listener) admitted(limits exchange.Limits) (*Conn, error) {
	for {
		if c, err := l.Accept(); err != nil || l.Admit(c, limits) {
			return c, err
		}
	}
}

// Accept retries after transient errors, at growing intervals. It logs consecutive errors once.
func TestAcceptGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := &source{next: append(slices.Repeat([]any{syscall.EMFILE}, 10), nil, syscall.ENFILE, syscall.ECONNABORTED, syscall.ENOBUFS, syscall.ENOMEM)}
		l, metrics, logs, _ := listenerOf(from)
		for i := range 3 {
			if i == 2 {
				time.Sleep(2 * spell)
				from.next = []any{syscall.EMFILE}
			}
			c, err := l.admitted(testLimits())
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
		}
		var waits []time.Duration
		for i, at := range from.at[1:16] {
			waits = append(waits, at.Sub(from.at[i]))
		}
		const ms = time.Millisecond
		want := []time.Duration{5 * ms, 10 * ms, 20 * ms, 40 * ms, 80 * ms, 160 * ms, 320 * ms, 640 * ms, 1000 * ms, 1000 * ms, 0, 5 * ms, 10 * ms, 20 * ms, 40 * ms}
		if !slices.Equal(waits, want) {
			t.Errorf("it waits %v, want %v", waits, want)
		}
		if n := logs.FilterMessage("connections cannot be accepted for now").Len(); n != 2 {
			t.Errorf("%d warnings, want one for each of two spells", n)
		}
		if n := testutil.ToFloat64(metrics.Refused.WithLabelValues("error")); n != 15 {
			t.Errorf("%v are counted, want 15", n)
		}
	})
}

// Accept returns all other errors. The server ends without waiting for the next attempt.
func TestAcceptEnds(t *testing.T) {
	for _, end := range []error{syscall.EBADF, syscall.EINVAL, net.ErrClosed} {
		l, _, _, _ := listenerOf(&source{next: []any{end}})
		if _, err := l.Accept(); !errors.Is(err, end) {
			t.Errorf("%v, want %v", err, end)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		l, _, _, ending := listenerOf(&source{next: slices.Repeat([]any{syscall.EMFILE}, 1000)})
		ended := make(chan error)
		go func() {
			_, err := l.Accept()
			ended <- err
		}()
		time.Sleep(time.Hour / 7)
		began := time.Now()
		close(ending)
		if err := <-ended; !errors.Is(err, syscall.EMFILE) || time.Since(began) > 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// The limit of file descriptors limits the connections, including crowded connections. The clients
// of crowded connections receive an error.
func TestDescriptorsBoundConnections(t *testing.T) {
	limits := testLimits()
	limits.Descriptors = 16
	l, metrics, _, _ := listenerOf(&source{next: append(make([]any, 20), syscall.EBADF)})
	var crowded int
	var all []*Conn
	for {
		c, err := l.admitted(limits)
		if err != nil {
			break
		}
		all = append(all, c)
		if c.crowded {
			crowded++
		}
	}
	if refused := testutil.ToFloat64(metrics.Refused.WithLabelValues("limit")); len(all) != 16 || crowded != 2 || refused != 4 {
		t.Errorf("%d connections, %d of them crowded, %v refused; want 16, 2 and 4", len(all), crowded, refused)
	}
	for _, c := range all {
		c.Close()
	}
	if n := l.Open.Len(); n != 0 {
		t.Errorf("%d are still counted", n)
	}
}

// testLimits are the limits of servers in tests.
func testLimits() exchange.Limits {
	return exchange.Limits{
		HeaderBytes: 64 << 10,
		Read:        30 * time.Second, Write: time.Minute, Idle: time.Minute,
		Connections: 1000, UserConnections: 1000, UserWatches: 1000, Forwards: 100,
	}
}

// The strangers of a few networks keep no others out, even if they come again as fast as they can: the
// network with the most makes room, whatever the address within it, the oldest connection first. Within it,
// a client has the time to say who it is. The connections of known users stay.
func TestStrangersMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 8
		limits := testLimits()
		limits.Connections = most
		from := &source{}
		l, metrics, _, _ := listenerOf(from)
		closed := func(c *Conn) bool {
			_ = c.socket.SetReadDeadline(time.Now())
			_, err := c.socket.Read(make([]byte, 1))
			return !errors.Is(err, os.ErrDeadlineExceeded)
		}
		accept := func(address string) *Conn {
			t.Helper()
			from.next = []any{address}
			c, err := l.admitted(limits)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		known := func(c *Conn) { c.HoldAs("user", func() (func(), bool) { return func() {}, true }) }
		var greedy []*Conn
		for i := range most {
			greedy = append(greedy, accept(fmt.Sprintf("[2001:db8::%d]:1", i+1)))
		}
		if c := accept("[2001:db8::99]:1"); !c.Crowded() || closed(greedy[0]) {
			t.Error("a client has no time to say who it is")
		} else {
			_ = c.Close()
		}
		known(greedy[0])
		other := accept("192.0.2.1:1")
		if closed(greedy[0]) || !closed(greedy[1]) || closed(greedy[2]) || other.Crowded() || l.Open.Len() != most {
			t.Errorf("%d connections are open, and the oldest stranger's is not the one that ended", l.Open.Len())
		}
		known(other)
		time.Sleep(handshakeTimeout)
		if c := accept("[2001:db8::98]:1"); c.Crowded() || !closed(greedy[2]) {
			t.Error("a client of a network is kept out by the old connections of the same network")
		}
		for i := range most - 3 { // each from its own network; of the first network, one is left
			if c := accept(fmt.Sprintf("[2001:db8:%d::1]:1", i+1)); c.Crowded() {
				t.Errorf("a client of the network %d is kept out", i)
			}
		}
		if c := accept("[2001:db8:99::1]:1"); !c.Crowded() {
			t.Error("one of many networks has taken the place of another")
		}
		if closed(greedy[0]) || closed(other) {
			t.Error("a known user's connection has ended")
		}
		if n := testutil.ToFloat64(metrics.Refused.WithLabelValues("limit")); n != most-1 {
			t.Errorf("%v are counted", n)
		}
		l.Open.Cut()
	})
}

// A connection that is about to be known does not make room, but the next one of its network.
func TestKnownUsersKeepTheirConnections(t *testing.T) {
	var s Set
	var all []*Conn
	for host := range 4 {
		c := New(&conntest.Socket{Remote: &net.TCPAddr{IP: net.IPv4(192, 0, 2, byte(host/3))}}) // three of the first
		_, gone, ok := s.add(c, 3, 3)
		all = append(all, c)
		switch {
		case !ok:
			t.Fatal("the set is full")
		case host == 0:
			c.Account.holdAs("user", func() (func(), bool) { return func() {}, true }) // the set does not know it yet
		case host < 3 && gone != nil, host == 3 && gone != all[1]:
			t.Errorf("the connection %d ends another one", host)
		}
	}
}
