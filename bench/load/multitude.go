package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// multitude measures 100,000 watches, 100 on each connection. They are first idle, and then all of
// them receive events.
func (b *bench) multitude(ctx context.Context) error {
	const watchers, streams, rate = 100_000, 100, 1
	proxy, err := b.startProxy(ctx, b.api.Kubeconfig, true) // a new proxy, without memory from earlier scenarios
	if err != nil {
		return err
	}
	// The list fills the cache.
	if _, err := proxy.get(ctx, request{path: "/api/v1/pods?resourceVersion=0"}); err != nil {
		return err
	}
	rv, err := b.resourceVersion(ctx)
	if err != nil {
		return err
	}
	var c listeners
	defer c.close()
	if err := c.open(ctx, proxy.over2(streams), watchers/streams, "/api/v1/pods?watch=1&resourceVersion="+rv); err != nil {
		return err
	}
	rss, _, err := cluster.MemoryOf(proxy.pid)
	if err != nil {
		return err
	}
	before, err := proxy.work()
	if err != nil {
		return err
	}
	_, acknowledged, err := b.writes(ctx, proxy, rate, b.updatePod)
	if err != nil {
		return err
	}
	deliveries := len(acknowledged) * watchers
	const limit = time.Minute
	if err := c.wait(ctx, int64(deliveries), limit); err != nil {
		return err
	}
	after, err := proxy.work()
	if err != nil {
		return err
	}
	_, peak, err := cluster.MemoryOf(proxy.pid)
	if err != nil {
		return err
	}
	c.close()
	_, p99, _ := percentiles(c.delays(acknowledged))
	name := fmt.Sprintf("%d on a connection, HTTP/2", streams)
	value := func(x float64) map[string]float64 { return map[string]float64{ours: x} }
	b.add(row{Scenario: "idle watches, " + name, Clients: watchers, Unit: "MiB", Value: value(float64(rss) / kib / kib)})
	b.add(row{Scenario: "the same, peak with an event each second", Clients: watchers, Unit: "MiB", Target: target{AtMost: 600}, Value: value(float64(peak) / kib / kib)})
	b.add(row{Scenario: "the same, event delay, p99", Clients: watchers, Unit: "ms", Target: target{AtMost: 3000}, Value: value(p99)})
	took := after.minus(before).server
	b.add(row{Scenario: "the same, deliveries", Clients: watchers, Unit: "delivery", Servers: map[string]spent{ours: {Units: deliveries, Seconds: took.Seconds()}}})
	return nil
}

// listeners are connections with many watches each. They need much less processor time than x/net's
// client, which would share the processors with the server. Like that client, they send window
// updates as they read.
type listeners struct {
	all     []*listener
	got     atomic.Int64 // events
	reading sync.WaitGroup
	closing atomic.Bool
	broken  atomic.Pointer[error]
}

// listener is one connection. All of its watches receive all events in the same order.
type listener struct {
	net.Conn
	framer *http2.Framer
	from   *bufio.Reader
	to     bytes.Buffer
	events map[uint32]int  // by stream
	brace  map[uint32]bool // the last byte of a stream was a brace
	unread map[uint32]int  // bytes not yet returned by a WINDOW_UPDATE
	times  [][]time.Time   // arrival times, by the number of the event
}

// open opens the connections and their watches, and begins to read.
func (l *listeners) open(ctx context.Context, s *server, n int, path string) error {
	const parallel = 16
	l.all = make([]*listener, n)
	err := workload.Parallel(ctx, n, parallel, func(ctx context.Context, i int) (err error) {
		l.all[i], err = s.listen(ctx, path)
		return err
	})
	if err != nil {
		return err
	}
	for _, one := range l.all {
		l.reading.Go(func() {
			if err := one.read(&l.got); !l.closing.Load() {
				l.broken.Store(&err)
			}
		})
	}
	return nil
}

// listen opens a connection and its watches.
func (s *server) listen(ctx context.Context, path string) (*listener, error) {
	one := *s
	one.streams = 0 // x/net's client is not used
	c, err := one.dial(ctx, 0)
	if err != nil {
		return nil, err
	}
	const window, readSize = 4 << 20, 16 << 10 // window is the same as in client-go
	const ok = 0x88                            // :status 200, from HPACK's static table
	l := &listener{Conn: c.conn, from: bufio.NewReaderSize(c.conn, readSize), events: map[uint32]int{}, brace: map[uint32]bool{}, unread: map[uint32]int{}}
	l.framer = http2.NewFramer(&l.to, l.from)
	l.framer.SetReuseFrames()
	l.to.WriteString(http2.ClientPreface)
	err = errors.Join(
		l.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}), l.framer.WriteWindowUpdate(0, 1<<30))
	for i := range s.streams {
		var block bytes.Buffer
		fields := hpack.NewEncoder(&block)
		fields.SetMaxDynamicTableSize(0)
		for _, f := range []hpack.HeaderField{
			{Name: ":method", Value: "GET"},
			{Name: ":scheme", Value: "https"},
			{Name: ":authority", Value: "localhost"},
			{Name: ":path", Value: path},
			{Name: "accept", Value: "application/json"},
			{Name: "authorization", Value: "Bearer " + s.token},
		} {
			err = errors.Join(err, fields.WriteField(f))
		}
		err = errors.Join(err, l.framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true,
		}))
	}
	for answered := 0; err == nil && answered < s.streams; {
		if err = l.flush(); err != nil {
			break
		}
		var f http2.Frame
		if f, err = l.framer.ReadFrame(); err == nil {
			err = l.control(f)
		}
		if h, is := f.(*http2.HeadersFrame); is {
			answered++
			if h.HeaderBlockFragment()[0] != ok {
				err = fmt.Errorf("%s: watch %d was refused", s.name, answered)
			}
		}
	}
	if err != nil {
		_ = c.conn.Close()
		return nil, err
	}
	return l, c.conn.SetDeadline(time.Time{})
}

// control handles control frames.
func (l *listener) control(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return l.framer.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return l.framer.WritePing(true, f.Data)
		}
	case *http2.RSTStreamFrame, *http2.GoAwayFrame:
		return fmt.Errorf("a watch has ended: %v", f)
	}
	return nil
}

func (l *listener) flush() error {
	_, err := l.to.WriteTo(l.Conn)
	return err
}

// read reads until the connection ends.
func (l *listener) read(got *atomic.Int64) error {
	for {
		f, err := l.framer.ReadFrame()
		if err == nil {
			err = l.control(f)
		}
		if err != nil {
			return err
		}
		if data, ok := f.(*http2.DataFrame); ok {
			if err := l.data(data, got); err != nil {
				return err
			}
		}
		if l.from.Buffered() == 0 {
			if err := l.flush(); err != nil {
				return err
			}
		}
	}
}

// data records the events whose last byte has arrived. A line feed after a brace ends an event. A
// frame may have parts of several events, or a line feed alone.
func (l *listener) data(f *http2.DataFrame, got *atomic.Int64) error {
	const refresh = 4 << 10 // x/net's client returns a window at this size
	id := f.StreamID
	ended := bytes.Count(f.Data(), []byte("}\n"))
	if l.brace[id] && bytes.HasPrefix(f.Data(), []byte("\n")) {
		ended++
	}
	l.brace[id] = bytes.HasSuffix(f.Data(), []byte("}")) || l.brace[id] && len(f.Data()) == 0
	for range ended {
		i := l.events[id]
		l.events[id]++
		if i == len(l.times) {
			l.times = append(l.times, nil)
		}
		l.times[i] = append(l.times[i], time.Now())
		got.Add(1)
	}
	if l.unread[id] += len(f.Data()); l.unread[id] < refresh {
		return nil
	}
	n := uint32(l.unread[id])
	l.unread[id] = 0
	return errors.Join(l.framer.WriteWindowUpdate(0, n), l.framer.WriteWindowUpdate(id, n))
}

// wait returns when a number of events have arrived in total.
func (l *listeners) wait(ctx context.Context, events int64, limit time.Duration) error {
	const pause = 5 * time.Millisecond
	for began := time.Now(); l.got.Load() < events; {
		if err := l.broken.Load(); err != nil {
			return *err
		}
		if time.Since(began) > limit {
			return fmt.Errorf("%d of %d events came within %v", l.got.Load(), events, limit)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// delays returns the times from the acknowledgement of each write to its event, in milliseconds.
// The listeners must be closed.
func (l *listeners) delays(acknowledged []time.Time) (all []float64) {
	for _, one := range l.all {
		for i, times := range one.times[:min(len(one.times), len(acknowledged))] {
			for _, came := range times {
				all = append(all, came.Sub(acknowledged[i]).Seconds()*1000)
			}
		}
	}
	return all
}

func (l *listeners) close() {
	l.closing.Store(true)
	for _, one := range l.all {
		if one != nil {
			_ = one.Close()
		}
	}
	l.reading.Wait()
}
