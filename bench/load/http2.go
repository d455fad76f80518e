package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// http2s compares HTTP/2, which client-go uses, with HTTP/1.1: for lists, other reads and watches.
func (b *bench) http2s(ctx context.Context) error {
	pod := workload.NewPod(0)
	namespace := "/api/v1/namespaces/" + pod.Namespace + "/pods"
	for _, read := range []struct {
		name string
		request
	}{
		{"list, JSON", request{path: "/api/v1/pods?resourceVersion=0"}},
		{"list, protobuf", request{path: "/api/v1/pods?resourceVersion=0", accept: protobuf}},
		{"list, gzip", request{path: "/api/v1/pods?resourceVersion=0", gzip: true}},
		{"read of one namespace", request{path: namespace + "?resourceVersion=0"}},
		{"most recent read of one namespace", request{path: namespace}},
		{"most recent read of one page of 500", request{path: "/api/v1/pods?limit=500"}},
		{"read of one object", request{path: namespace + "/" + pod.Name + "?resourceVersion=0"}},
	} {
		const clients, rounds = 4, 3
		two := row{Scenario: read.name + ", HTTP/2", Clients: clients, Unit: "request", Servers: map[string]spent{}}
		one := row{Scenario: read.name + ", HTTP/1.1", Clients: clients, Unit: "request", Servers: map[string]spent{}}
		wire := two.values("KiB on the wire", "KiB")
		for range rounds {
			for _, s := range []*server{b.direct, b.secure.proxy} {
				for _, r := range []struct {
					*row
					*server
				}{{&one, s}, {&two, s.over2(1)}} {
					before := received.Load()
					got, err := b.measureReads(ctx, r.server, read.request, clients)
					if err != nil {
						return fmt.Errorf("%s: %w", r.Scenario, err)
					}
					wire.Value[s.name] = float64(received.Load()-before) / float64(got.Units+clients) / kib // of the second run, over HTTP/2
					r.Servers[s.name] = r.Servers[s.name].and(got)
				}
			}
		}
		b.add(one)
		b.add(two)
		b.add(wire)
	}
	for _, f := range []struct{ watchers, rate, streams int }{{1000, 10, 1}, {1000, 10, 100}, {5000, 2, 1}} {
		if err := b.fanOut2(ctx, f.watchers, f.rate, f.streams); err != nil {
			return err
		}
	}
	return nil
}

// fanOut2 is fanOut over HTTP/2, with the given number of watches on each connection.
func (b *bench) fanOut2(ctx context.Context, watchers, rate, streams int) error {
	name := "a connection each"
	if streams > 1 {
		name = fmt.Sprintf("%d on a connection", streams)
	}
	name = fmt.Sprintf("fan-out, %d events/s, HTTP/2, %s", rate, name)
	r := row{Scenario: name, Clients: watchers, Unit: "delivery", Servers: map[string]spent{}}
	p50, p99, wire := r.values("event delay, p50", "ms"), r.values("event delay, p99", "ms"), r.values("KiB on the wire", "KiB")
	frame, err := b.frame(ctx)
	if err != nil {
		return err
	}
	_, event, _ := bytes.Cut(bytes.TrimSuffix(frame, []byte("\r\n")), []byte("\r\n"))
	f, floor, err := startFloor("h2", event)
	if err != nil {
		return err
	}
	defer f.close() //nolint:errcheck // it is killed
	if watchers == targeted && streams == 1 {
		r.Target.LessThanAPIServer, r.Target.OfFloor, p99.Target.LessThanAPIServer = 2.5, 1, 1.43
	}
	servers := []written{{b.direct.over2(streams), b.updatePod}, {b.secure.proxy.over2(streams), b.updatePod}, {floor.over2(streams), floor.write}}
	delays, onWire, err := b.deliveries(ctx, r, rate, fanOutRounds, servers)
	if err != nil {
		return err
	}
	wire.Value = onWire
	for name, d := range delays {
		p50.Value[name], p99.Value[name], _ = percentiles(d.all)
	}
	b.add(r)
	b.add(p50)
	b.add(p99)
	b.add(wire)
	if watchers != targeted || streams > 1 {
		return nil
	}
	return b.profileFanOut(ctx, r.Scenario, watchers, rate, servers)
}

// over2 returns the server over HTTP/2, with the given number of watches on each connection.
func (s *server) over2(streams int) *server {
	two := *s
	two.tls = s.tls.Clone()
	two.tls.NextProtos = []string{http2.NextProtoTLS}
	two.streams = streams
	return &two
}

// two starts HTTP/2 on a connection, with the same windows as client-go.
func (s *server) two(conn net.Conn) (*http2.ClientConn, error) { //nolint:staticcheck // client-go uses this library
	cc, err := (&http2.Transport{DisableCompression: true}).NewClientConn(conn) //nolint:staticcheck // as above
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	return cc, nil
}

// send2 is send over HTTP/2.
func (c *client) send2(r request, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(context.Background(), r.method, c.server.url.Scheme+"://localhost"+path, strings.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", r.accept)
	if c.server.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.server.token)
	}
	if r.gzip {
		req.Header.Set("Accept-Encoding", "gzip")
	}
	return c.cc.RoundTrip(req)
}

// watch2 answers each request on a connection as a watch, which receives prepared DATA frames. It
// reads the client's bytes, but ignores windows.
func (cs *conns) watch2(c *tls.Conn) {
	defer c.Close() //nolint:errcheck // nobody is there
	from := bufio.NewReader(c)
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := from.Read(preface); err != nil {
		return
	}
	framer := http2.NewFramer(c, from)
	var writing sync.Mutex
	if err := framer.WriteSettings(); err != nil {
		return
	}
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			cs.leave(c)
			return
		}
		writing.Lock()
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = framer.WriteSettingsAck()
			}
		case *http2.HeadersFrame:
			const ok = "\x88" // :status 200, from HPACK's static table
			_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: f.StreamID, BlockFragment: []byte(ok), EndHeaders: true})
			cs.mu.Lock()
			cs.open = append(slices.Clip(cs.open), stream{c, f.StreamID})
			cs.mu.Unlock()
		}
		writing.Unlock()
	}
}
