package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/net/http2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// pace is how a client takes all pods over HTTP/2.
type pace struct {
	name    string
	clients int
	take    func(ctx context.Context, s *server) error
}

// paces compares clients that only read with those that users run: they decode, or are slow, or have
// small windows. A row's unit is one client that has taken all pods.
func (b *bench) paces(ctx context.Context) error {
	const rounds, path, slow = 5, "/api/v1/pods?" + withState, 5 << 20
	pods := collection{resource: corev1.SchemeGroupVersion.WithResource("pods"), objects: b.pods}
	informer := func(contentType string) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			_, err := b.inform(ctx, s, &pods, contentType)
			return err
		}
	}
	if _, err := b.secure.proxy.sync(ctx, path); err != nil { // fills the cache
		return err
	}
	// Go's windows are 4 MiB by default, and many other clients' are 65,535 bytes.
	read := func(path string, window int, by func(io.Reader) error) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error { return s.readAt(ctx, path, window, by) }
	}
	const windowGo, windowSmall = 4 << 20, 1<<16 - 1
	for _, p := range []pace{
		{"sync, only reads", 1, read(path, windowGo, readState)},
		{"sync, decodes JSON", 1, read(path, windowGo, decodeState)},
		{"sync, decodes JSON", 16, read(path, windowGo, decodeState)},
		{"sync, client-go's informer, JSON", 1, informer("")},
		{"sync, client-go's informer, protobuf", 1, informer(protobuf)},
		{"sync, client-go's informer, JSON", 16, informer("")},
		{"sync, reads 5 MB/s", 1, read(path, windowGo, func(r io.Reader) error { return readState(&throttled{r, time.Now(), slow, 0}) })},
		{"sync, windows of 65,535 bytes, only reads", 1, read(path, windowSmall, readState)},
		{"sync, windows of 65,535 bytes, decodes JSON", 1, read(path, windowSmall, decodeState)},
		{"list, only reads", 1, read("/api/v1/pods", windowGo, readAll)},
		{"list, decodes JSON", 1, read("/api/v1/pods", windowGo, decodeList)},
		{"list, windows of 65,535 bytes, only reads", 1, read("/api/v1/pods", windowSmall, readAll)},
	} {
		r := row{Scenario: p.name + ", HTTP/2", Clients: p.clients, Unit: "client", Servers: map[string]spent{}}
		took := r.values("time", "ms")
		for range rounds {
			for _, s := range []*server{b.direct, b.secure.proxy} {
				got, ms, err := p.measure(ctx, s)
				if err != nil {
					return fmt.Errorf("%s: %w", r.Scenario, err)
				}
				r.Servers[s.name] = r.Servers[s.name].and(got)
				took.Value[s.name] += ms / rounds
			}
		}
		b.add(r)
		b.add(took)
	}
	return nil
}

func (p *pace) measure(ctx context.Context, s *server) (got spent, ms float64, err error) {
	before, err := s.cpu()
	if err != nil {
		return got, 0, err
	}
	began := time.Now()
	err = workload.Parallel(ctx, p.clients, p.clients, func(ctx context.Context, _ int) error { return p.take(ctx, s) })
	ms = time.Since(began).Seconds() * 1000
	after, cpuErr := s.cpu()
	return spent{Units: p.clients, Seconds: (after - before).Seconds()}, ms, errors.Join(err, cpuErr)
}

// readAt requests a path by Go's transport with the given windows, and has the response read.
func (s *server) readAt(ctx context.Context, path string, window int, by func(io.Reader) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, requestLimit, fmt.Errorf("not read within %v", requestLimit))
	defer cancel()
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	config := s.tls.Clone()
	config.NextProtos = []string{http2.NextProtoTLS}
	transport := &http.Transport{
		TLSClientConfig: config, Protocols: &protocols, DisableCompression: true,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: window, MaxReceiveBufferPerConnection: max(window, 1<<16)},
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url.String()+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Authorization", "Bearer "+s.token)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // a watch goes on
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		return fmt.Errorf("%s: %s: %s by %s", s.name, path, resp.Status, resp.Proto)
	}
	return by(resp.Body)
}

// stateEnds is in the bookmark that ends the state of a watch.
const stateEnds = "k8s.io/initial-events-end"

// readState reads a watch to the end of its state.
func readState(r io.Reader) error {
	buf, kept := make([]byte, 64<<10), 0
	for {
		n, err := r.Read(buf[kept:])
		if bytes.Contains(buf[:kept+n], []byte(stateEnds)) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("before the end of the state: %w", err)
		}
		kept = copy(buf, buf[max(0, kept+n-len(stateEnds)):kept+n])
	}
}

// decodeState decodes the events of a watch to the end of its state.
func decodeState(r io.Reader) error {
	for events := json.NewDecoder(r); ; {
		var event metav1.WatchEvent
		if err := events.Decode(&event); err != nil {
			return fmt.Errorf("before the end of the state: %w", err)
		}
		var pod corev1.Pod
		if err := json.Unmarshal(event.Object.Raw, &pod); err != nil {
			return err
		}
		if event.Type == "BOOKMARK" && pod.Annotations[stateEnds] != "" {
			return nil
		}
	}
}

func readAll(r io.Reader) error {
	_, err := io.CopyBuffer(discard{}, struct{ io.Reader }{r}, make([]byte, 64<<10))
	return err
}

func decodeList(r io.Reader) error {
	var list corev1.PodList
	return json.NewDecoder(r).Decode(&list)
}

// throttled reads a number of bytes per second.
type throttled struct {
	from  io.Reader
	began time.Time
	rate  float64
	read  float64
}

// Read implements io.Reader.
func (t *throttled) Read(p []byte) (int, error) {
	n, err := t.from.Read(p[:min(len(p), 16<<10)])
	t.read += float64(n)
	time.Sleep(time.Until(t.began.Add(time.Duration(t.read / t.rate * float64(time.Second)))))
	return n, err
}
