package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// connection is a client with its own HTTP transport, like a separate program. By default all
// clients of a process share client-go's transport, and so one HTTP/2 connection.
type connection struct {
	config *rest.Config
	client *http.Client

	mu struct {
		sync.Mutex
		open   []net.Conn
		closed bool
	}
}

func connect(to *rest.Config) (*connection, error) {
	c := &connection{config: rest.CopyConfig(to)}
	c.config.ContentType = "application/json"
	c.config.Dial = c.dial
	// There is no HTTP proxy. The function keeps the transport out of client-go's cache.
	c.config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil } //nolint:nilnil // as net/http wants it
	var err error
	if c.client, err = rest.HTTPClientFor(c.config); err != nil {
		return nil, fmt.Errorf("client of %s: %w", to.Host, err)
	}
	return c, nil
}

func (c *connection) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	c.mu.open = append(c.mu.open, conn)
	return conn, nil
}

// close ends the connections, whether or not they are idle.
func (c *connection) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.closed = true
	for _, conn := range c.mu.open {
		_ = conn.Close()
	}
}
