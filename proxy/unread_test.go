package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/read"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// oneFeed are the feeds of a server that caches one resource. If the field opening is set, each
// Open calls it.
type oneFeed struct {
	forwardsAll
	feed    read.Feed
	opening func(context.Context)
}

// Caches implements Feeds.
func (oneFeed) Caches(schema.GroupVersionResource, object.Want) bool { return true }

// Open implements Feeds.
func (f oneFeed) Open(ctx context.Context, _ schema.GroupVersionResource, _ object.Want, _ object.Encoding, _ uint64) (read.Feed, error) {
	if f.opening != nil {
		f.opening(ctx)
	}
	return f.feed, nil
}

const watchTarget = "/api/v1/namespaces/a/configmaps?watch=1&resourceVersion="

// unreadHTTP2 opens watches on one connection. Its client gives no window for data.
func unreadHTTP2(t *testing.T, address net.Addr, n int, target string) {
	t.Helper()
	c, err := tls.Dial(address.Network(), address.String(), insecure("h2"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	send(t, c, http2.ClientPreface)
	framer := http2.NewFramer(c, c)
	if err := framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, c)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := range n {
		block.Reset()
		for _, kv := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "localhost"}, {":path", target}} {
			if err := encoder.WriteField(hpack.HeaderField{Name: kv[0], Value: kv[1]}); err != nil {
				t.Fatal(err)
			}
		}
		if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
	}
}

// unreadHTTP1 opens a watch on its own connection. The client reads nothing.
func unreadHTTP1(t *testing.T, address net.Addr, target string) {
	t.Helper()
	c, err := net.Dial(address.Network(), address.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	send(t, tls.Client(c, insecure()), "GET "+target+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
}
