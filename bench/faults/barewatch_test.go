package faults

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// openBare opens a watch on a connection and reads only the head of its answer. rest reads to the
// end of the watch.
func openBare(conn net.Conn, protocol cluster.Protocol, target string) (rest func() error, err error) {
	if protocol == cluster.HTTP2 {
		return openFrames(conn, target)
	}
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", target)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return func() error { _, err := io.Copy(io.Discard, resp.Body); return err }, err
}

// openFrames is openBare over HTTP/2, with the largest possible windows.
func openFrames(conn net.Conn, target string) (rest func() error, err error) {
	const widest = 1<<31 - 1
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for name, value := range map[string]string{":method": "GET", ":scheme": "https", ":authority": "localhost", ":path": target} {
		_ = encoder.WriteField(hpack.HeaderField{Name: name, Value: value})
	}
	_, err = io.WriteString(conn, http2.ClientPreface)
	err = errors.Join(err,
		framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: widest}),
		framer.WriteWindowUpdate(0, widest-1<<16+1),
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}))
	until := func(last func(http2.Frame) bool) error {
		for {
			if f, err := framer.ReadFrame(); err != nil || last(f) {
				return err
			}
		}
	}
	if err == nil {
		err = until(func(f http2.Frame) bool {
			h, ok := f.(*http2.MetaHeadersFrame)
			return ok && h.PseudoValue("status") == "200"
		})
	}
	return func() error {
		return until(func(f http2.Frame) bool {
			h := f.Header()
			return h.Type == http2.FrameRSTStream || h.Type == http2.FrameData && h.Flags.Has(http2.FlagDataEndStream)
		})
	}, err
}
