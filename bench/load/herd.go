package main

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/watchproxy/watchproxy/bench/workload"
)

// syncs measures informers that start together. Each informer reads the state of a namespace by a
// watch.
func (b *bench) syncs(ctx context.Context) error {
	path := "/api/v1/namespaces/" + workload.Namespaces[0] + "/pods?" + withState
	r := row{Scenario: "sync of a namespace, by watch", Clients: 1000, Unit: "informer", Servers: map[string]spent{}}
	for _, s := range []struct {
		*server
		informers int
	}{{b.direct, 50}, {b.secure.proxy, r.Clients}} {
		before, err := s.cpu()
		if err != nil {
			return err
		}
		if err := workload.Parallel(ctx, s.informers, s.informers, func(ctx context.Context, _ int) error {
			_, err := s.sync(ctx, path)
			return err
		}); err != nil {
			return err
		}
		after, err := s.cpu()
		if err != nil {
			return err
		}
		r.Servers[s.name] = spent{Units: s.informers, Seconds: (after - before).Seconds()}
	}
	b.add(r)
	return nil
}

// sync reads a watch until the end of its initial state. It counts the objects by their lines,
// without decoding them. So the count is right only if nothing is written meanwhile.
func (s *server) sync(ctx context.Context, path string) (objects int, err error) {
	c, err := s.dial(ctx, 64<<10)
	if err != nil {
		return 0, err
	}
	defer c.close()
	resp, err := c.send(request{path: path, gzip: s.gzip})
	if err != nil {
		return 0, err
	}
	events, err := s.plain(resp)
	if err != nil {
		return 0, err
	}
	mark, kept := []byte("k8s.io/initial-events-end"), 0
	for {
		n, err := events.Read(c.buf[kept:])
		end := kept + n
		if at := bytes.Index(c.buf[:end], mark); at >= 0 {
			return objects + bytes.Count(c.buf[kept:max(kept, at)], []byte("\n")), nil
		}
		if err != nil {
			return objects, fmt.Errorf("%s: %s: before the end of the state: %w", s.name, path, io.ErrUnexpectedEOF)
		}
		objects += bytes.Count(c.buf[kept:end], []byte("\n"))
		kept = copy(c.buf, c.buf[max(0, end-len(mark)):end])
	}
}
