package access

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// TestSmugglingHTTP2 does the same as TestSmuggling over HTTP/2, with frames that no library would
// send.
func TestSmugglingHTTP2(t *testing.T) {
	w := newSmugglers(t)
	w.try(t, w.smuggleAllFrames)
}

// smuggleFields are header fields in the order in which they are sent.
type smuggleFields [][2]string

// smuggleFieldTable contains header fields that replace fields of an honest request for forbidden
// objects, or are added to them.
var smuggleFieldTable = []smuggleFields{
	{{"impersonate-user", "admin"}, {"impersonate-group", "system:masters"}},
	{{"Impersonate-User", "admin"}},
	{{"impersonate-user", "bob"}, {"impersonate-user", "admin"}},
	{{"impersonate-group", "system:masters"}},
	{{"impersonate-uid", "1"}},
	{{"impersonate-extra-scopes", "all"}},
	{{"impersonate-user", " admin "}},
	{{"impersonate_user", "admin"}},
	{{"impersonate-user ", "admin"}},
	{{"impersonate-user", "admin\r\nimpersonate-group: system:masters"}},
	{{"x", "y\nimpersonate-user: admin"}},
	{{"x", "y\x00"}},
	{{"x-remote-user", "admin"}, {"x-remote-group", "system:masters"}},
	{{"authorization", "Bearer garbage"}},
	{{"authorization", ""}},
	{{"connection", "authorization, impersonate-user"}},
	{{"connection", "close"}},
	{{"proxy-connection", "authorization"}},
	{{"transfer-encoding", "chunked"}},
	{{"te", "trailers, authorization"}},
	{{"upgrade", "websocket"}},
	{{"content-length", "10"}},
	{{"content-length", "0"}, {"content-length", "1"}},
	{{"content-length", "-1"}},
	{{"host", "evil.example"}},
	{{":authority", "evil.example"}},
	{{":path", "/api/v1/namespaces/default/../kube-system/pods?resourceVersion=0"}},
	{{":path", "/api/v1/namespaces/%2e%2e/pods?resourceVersion=0"}},
	{{":path", "//api/v1/namespaces/kube-system/pods?resourceVersion=0"}},
	{{":path", "/api/v1/namespaces/default%2f..%2fkube-system/pods?resourceVersion=0"}},
	{{":path", "/api/v1/pods HTTP/1.1\r\nImpersonate-User: admin\r\nX: "}},
	{{":path", "api/v1/pods"}},
	{{":path", "http://localhost/api/v1/pods?resourceVersion=0"}},
	{{":path", "*"}},
	{{":path", ""}},
	{{":path", smuggleHot}, {":path", smuggleCold}},
	{{":method", "get"}},
	{{":method", "GET /api/v1/secrets HTTP/1.1\r\nX:"}},
	{{":method", "CONNECT"}},
	{{":scheme", "http"}},
	{{":protocol", "websocket"}, {":method", "CONNECT"}},
	{{":status", "200"}},
	{{"x-http-method-override", "DELETE"}},
	{{"sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.Z2FyYmFnZQ"}},
	{{"cookie", "a=b"}, {"cookie", "c=d"}},
}

// smuggleAllFrames makes every attempt as every caller, for objects in the cache and others.
func (w *smugglers) smuggleAllFrames(t *testing.T, to *server) (all []*smuggled) {
	t.Helper()
	for _, target := range []string{smuggleHot, smuggleCold} {
		for _, fields := range smuggleFieldTable {
			for _, caller := range w.callers {
				s := &smuggled{attempt: smuggleAttempt{name: fmt.Sprintf("%q, %s", fields, target)}, caller: caller}
				all = append(all, s)
				if err := s.smuggleFrames(t.Context(), to, fields, target); err != nil {
					t.Errorf("%v: %v", s, err)
				}
			}
		}
	}
	return all
}

func (s *smuggled) smuggleFrames(ctx context.Context, to *server, fields smuggleFields, target string) error {
	conn, err := to.connect(ctx, s.caller, "h2")
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return err
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	framer.AllowIllegalWrites = true
	if err := framer.WriteSettings(); err != nil {
		return err
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range smuggleHonest(s.caller, fields, target) {
		if err := encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
			return err
		}
	}
	const stream = 1
	if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
		return err
	}
	return s.readFrames(framer)
}

// smuggleHonest returns the fields of an honest request, with some of them replaced. Pseudo fields
// come first, as HTTP/2 requires.
func smuggleHonest(caller *caller, fields smuggleFields, target string) (all smuggleFields) {
	replaced := map[string]bool{}
	for _, field := range fields {
		if field[0][0] == ':' {
			replaced[field[0]] = true
			all = append(all, field)
		}
	}
	honest := smuggleFields{{":method", "GET"}, {":scheme", "https"}, {":authority", "localhost"}, {":path", target}}
	for _, field := range honest {
		if !replaced[field[0]] {
			all = append(all, field)
		}
	}
	all = append(all, [2]string{"user-agent", smuggleAgent + "frames"})
	if caller.token != "" {
		all = append(all, [2]string{"authorization", "Bearer " + caller.token})
	}
	for _, field := range fields {
		if field[0][0] != ':' {
			all = append(all, field)
		}
	}
	return all
}

// readFrames reads until the stream or the connection has ended.
func (s *smuggled) readFrames(framer *http2.Framer) error {
	for {
		frame, err := framer.ReadFrame()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("neither the stream nor the connection ends within %v", limit)
		}
		if err != nil {
			return nil // refused
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				if err := framer.WriteSettingsAck(); err != nil {
					return nil // refused
				}
			}
			continue
		case *http2.MetaHeadersFrame:
			code, err := strconv.Atoi(f.PseudoValue("status"))
			if err != nil {
				return fmt.Errorf("status %q: %w", f.PseudoValue("status"), err)
			}
			if code >= http.StatusOK {
				s.codes = append(s.codes, code)
			}
			s.answers = fmt.Appendf(s.answers, "%v", f.Fields)
		case *http2.DataFrame:
			s.answers = append(s.answers, f.Data()...)
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return nil
		}
		if frame.Header().Flags.Has(http2.FlagDataEndStream) && frame.Header().StreamID != 0 {
			return nil
		}
	}
}
