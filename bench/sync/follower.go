package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
)

// follow is a lightweight syncer, of which a process can run a thousand. It sends an informer's
// request and counts the events, but does not decode or keep them. If the server asks it to retry
// later, it does so like client-go.
func follow(ctx context.Context, to *rest.Config, c *collection, synced func(objects int)) error {
	way, err := connect(to)
	if err != nil {
		return err
	}
	defer way.close()
	did := false
	err = c.follow(ctx, to.Host, way.client, func(objects int) {
		did = true
		synced(objects)
	})
	switch {
	case did && ctx.Err() != nil:
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return fmt.Errorf("watch of %s at %s: %w", c.gvr.Resource, to.Host, err)
}

func (c *collection) follow(ctx context.Context, host string, client *http.Client, synced func(objects int)) error {
	body, err := c.watch(ctx, host, client)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // the connection is closed, too
	const buffer = 16 << 10
	r := bufio.NewReaderSize(body, buffer)
	objects, err := countInitial(r)
	if err != nil {
		return err
	}
	synced(objects)
	if _, err := io.Copy(io.Discard, r); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF // the server ended the watch
}

// watch opens a watch and returns its stream of events.
func (c *collection) watch(ctx context.Context, host string, client *http.Client) (io.ReadCloser, error) {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, host+c.target(), http.NoBody)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Accept", "application/json, */*")
		req.Header.Set("User-Agent", "bench-sync")
		resp, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode == http.StatusOK {
			return resp.Body, nil
		}
		said, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		_ = resp.Body.Close() // the part that was read is enough for the error
		if err != nil {
			return nil, fmt.Errorf("%s: %w", resp.Status, err)
		}
		later, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		if err != nil {
			return nil, fmt.Errorf("%s: %s", resp.Status, said)
		}
		if err := sleep(ctx, time.Duration(later)*time.Second); err != nil {
			return nil, err
		}
	}
}

// target returns the target of an informer's request.
func (c *collection) target() string {
	path := "/apis/" + c.gvr.Group + "/" + c.gvr.Version
	if c.gvr.Group == "" {
		path = "/api/" + c.gvr.Version
	}
	return path + "/" + c.gvr.Resource + "?" + url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"}, "timeoutSeconds": {"480"},
		"sendInitialEvents": {"true"}, "resourceVersionMatch": {"NotOlderThan"},
	}.Encode()
}

// countInitial reads events up to the bookmark that ends the initial events, and returns the number
// of objects.
func countInitial(r *bufio.Reader) (objects int, err error) {
	for first := true; ; { // first piece of a line
		piece, err := r.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !long {
			return objects, fmt.Errorf("ended before the initial events did: %w", err)
		}
		if first {
			switch {
			case bytes.HasPrefix(piece, []byte(`{"type":"ADDED"`)):
				objects++
			case bytes.HasPrefix(piece, []byte(`{"type":"DELETED"`)):
				objects--
			case bytes.HasPrefix(piece, []byte(`{"type":"MODIFIED"`)):
			case !bytes.HasPrefix(piece, []byte(`{"type":"BOOKMARK"`)):
				return objects, fmt.Errorf("not an event of a collection: %s", piece)
			case bytes.Contains(piece, []byte(`"k8s.io/initial-events-end":"true"`)):
				return objects, nil
			}
		}
		first = !long
	}
}
