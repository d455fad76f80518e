package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// If a request is not sent, the forwarder does not touch its client's connection.
func TestUnsentRequestIsNotWatched(t *testing.T) {
	f, client := overTLS(t, http.NotFound), &watchedClient{}
	resp := f.Send(t.Context(), context.Background(), context.Background(), &exchange.Request{
		Method: http.MethodGet, Target: "/api", Header: http.Header{}, Client: client,
		Identity: &access.Caller{ActsAs: &user.DefaultInfo{Name: "a\nb"}},
	}, &Attempt{})
	if resp.Source != exchange.FromProxy || client.began.Load() != 0 {
		t.Errorf("answer %d from %s, the client was watched %d times", resp.Status, resp.Source, client.began.Load())
	}
}

// The Status of a request without an answer says whether upstream may have received it. The codes
// are in TestFailuresOfUpstream of package proxy.
func TestUnanswered(t *testing.T) {
	for _, test := range []struct {
		sent, harmless bool
		says           string
	}{
		{false, true, "cannot be reached"},
		{true, true, "no complete answer"},
		{true, false, "may have been executed"},
	} {
		if s := unanswered(io.ErrUnexpectedEOF, test.sent, test.harmless); !strings.Contains(s.Message, test.says) {
			t.Errorf("sent %t, harmless %t: %s", test.sent, test.harmless, s.Message)
		}
	}
}

// Requests with credentials that may be wrong share no connection with others, and do not use
// HTTP/2, whose connections they would end.
func TestConnectionsOfEachKind(t *testing.T) {
	f := overTLS(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Proto, " ", r.RemoteAddr, " ", r.Header.Get("Authorization"), r.Header.Get("Impersonate-User"))
	})
	const own, users, strangers = "the proxy", "users", "strangers"
	long := strings.Repeat("a", exchange.BodyAhead+1)
	verified, anyone := &access.Caller{Token: true}, &access.Caller{}
	upload := func() *exchange.Body { return &exchange.Body{From: strings.NewReader("a"), Length: 1} }
	on := map[string]string{} // connection to kind
	for range 2 {
		for name, test := range map[string]struct {
			identity   *access.Caller
			credential string
			body       *exchange.Body
			lasts      bool
			kind       string
			proto      string
			as         string
		}{
			"as the proxy":     {nil, "", nil, false, own, "HTTP/2.0", "Bearer own"},
			"impersonated":     {&access.Caller{ActsAs: &user.DefaultInfo{Name: "a"}}, "", nil, false, own, "HTTP/2.0", "Bearer owna"},
			"verified token":   {verified, "Bearer a", nil, false, users, "HTTP/2.0", "Bearer a"},
			"unverified token": {nil, "Bearer a", nil, false, strangers, "HTTP/1.1", "Bearer a"},
			"anonymous":        {anyone, "", nil, false, strangers, "HTTP/1.1", ""},
			"no bearer token":  {anyone, "Basic a", nil, false, strangers, "HTTP/1.1", "Basic a"},
			"write":            {nil, "Bearer a", &exchange.Body{From: strings.NewReader("a"), Length: 1, Most: 1, Keep: true}, false, strangers, "HTTP/1.1", "Bearer a"},
			"long write":       {verified, "Bearer a", &exchange.Body{From: strings.NewReader(long), Length: int64(len(long)), Keep: true}, false, users + "' long writes", "HTTP/1.1", "Bearer a"},
			"kept long write":  {verified, "Bearer a", &exchange.Body{From: strings.NewReader(long), Length: int64(len(long)), Keep: true, Room: int64(len(long))}, false, users, "HTTP/2.0", "Bearer a"},
			"watch":            {nil, "Bearer a", nil, true, strangers + "' long requests", "HTTP/2.0", "Bearer a"},
			"upload to a pod":  {nil, "Bearer a", upload(), true, "uploads", "HTTP/2.0", "Bearer a"},
			"user's upload":    {verified, "Bearer a", upload(), true, "users' uploads", "HTTP/2.0", "Bearer a"},
			"own upload":       {nil, "", upload(), true, "own uploads", "HTTP/2.0", "Bearer own"},
			"get from a pod":   {verified, "Bearer a", nil, false, users + "' long writes", "HTTP/1.1", "Bearer a"},
		} {
			req := &exchange.Request{Method: http.MethodGet, Target: "/api", Header: http.Header{}, Client: &watchedClient{}, Identity: test.identity, Body: test.body}
			if test.body != nil {
				req.Method = http.MethodPost
			}
			if test.credential != "" {
				req.Header.Set("Authorization", test.credential)
			}
			attempt := &Attempt{Lasts: test.lasts, Relayed: strings.Contains(name, "a pod")}
			resp := f.Send(t.Context(), context.Background(), context.Background(), req, attempt)
			body, err := io.ReadAll(resp.Body.(io.Reader))
			resp.Close(0)
			if err != nil {
				t.Fatal(err)
			}
			const parts = 3
			fields := strings.SplitN(string(body), " ", parts)
			proto, conn, as := fields[0], fields[1], fields[2]
			if proto != test.proto || as != test.as {
				t.Errorf("%s: %s as %q, want %s as %q", name, proto, as, test.proto, test.as)
			}
			if other := on[conn]; other != "" && other != test.kind {
				t.Errorf("%s: has the connection of %s", name, other)
			}
			on[conn] = test.kind
		}
	}
}

// overTLS returns a forwarder to a server over HTTP/2 and HTTP/1.1.
func overTLS(t *testing.T, h http.HandlerFunc) *Forwarder {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, BearerToken: "own", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	f, err := New(config, func(adapt Adaptation) (http.RoundTripper, error) { return rest.TransportFor(adapt(config)) })
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A drain ends a watch as upstream would. A part of an event does not look like a whole one.
func TestDrainWithinAnEvent(t *testing.T) {
	for _, tc := range []struct {
		contentType, encoding, sent string
		want                        error
	}{
		{"application/json", "", "", nil},
		{"application/json", "", "{}\n", nil},
		{"application/json", "", "{}\n{", io.ErrUnexpectedEOF},
		{"application/json;stream=watch", "", "{", io.ErrUnexpectedEOF},
		{"application/json", "gzip", "a whole member", nil},
		{"text/plain", "", "a log", nil},
	} {
		f := overTLS(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", tc.contentType)
			if tc.encoding != "" {
				w.Header().Set("Content-Encoding", tc.encoding)
			}
			_, _ = io.WriteString(w, tc.sent)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		over, drain := context.WithCancel(t.Context())
		resp := f.Send(t.Context(), over, context.Background(), &exchange.Request{
			Method: http.MethodGet, Target: "/api", Header: http.Header{}, Client: &watchedClient{}, Identity: &access.Caller{},
		}, &Attempt{})
		got := make([]byte, len(tc.sent))
		if _, err := io.ReadFull(resp.Body.(io.Reader), got); err != nil {
			t.Fatal(err)
		}
		drain()
		if rest, err := io.ReadAll(resp.Body.(io.Reader)); len(rest) > 0 || !errors.Is(err, tc.want) {
			t.Errorf("%s %q: then %q, %v, want %v", tc.contentType, tc.sent, rest, err, tc.want)
		}
		resp.Close(0)
	}
}

// Net/http must not send a request twice because of a client's header.
func TestIdempotencyKeyIsOnlyPassedOn(t *testing.T) {
	x := &roundTrip{lifetime: lifetime{Request: &exchange.Request{Method: http.MethodPost, Target: "/api", Header: http.Header{"Idempotency-Key": {"a"}}}}}
	out, err := x.outgoing(t.Context(), &url.URL{Scheme: "https", Host: "upstream"}, nil)
	if err != nil || out.Header.Get("Idempotency-Key") != "" || !slices.Equal(out.Header[strings.ToLower("Idempotency-Key")], []string{"a"}) {
		t.Errorf("%v, %v", out.Header, err)
	}
}

// Long headers of a response are dropped, whatever the response is. An error says so.
func TestLongHeaders(t *testing.T) {
	send := func(method, target string, relayed, upgrade bool) *exchange.Response {
		f := overTLS(t, func(w http.ResponseWriter, r *http.Request) {
			n, _ := strconv.Atoi(r.URL.Query().Get("n"))
			for i := range n {
				w.Header().Set(fmt.Sprint("A", i), strings.Repeat("a", 1000))
			}
			if upgrade {
				w.Header().Set("Connection", "Upgrade")
				w.Header().Set("Upgrade", "a")
				w.WriteHeader(http.StatusSwitchingProtocols)
			}
		})
		req := &exchange.Request{Method: method, Target: target, Header: http.Header{}, Client: &watchedClient{}}
		if upgrade {
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "a")
		}
		ends := 0
		resp := f.Send(t.Context(), context.Background(), context.Background(), req, toldOf(&Attempt{Relayed: relayed}, func() { ends++ }))
		resp.Abandon()
		if ends != 1 {
			t.Errorf("%s %s: the request has ended %d times", method, target, ends)
		}
		return resp
	}
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
		for _, relayed := range []bool{false, true} {
			for n, want := range map[int]int{50: http.StatusOK, 70: http.StatusBadGateway} {
				resp := send(method, fmt.Sprint("/api?n=", n), relayed, false)
				if resp.Status != want || exchange.HeaderSize(resp.Header) > HeaderMax {
					t.Errorf("%s with %d headers of 1,000 bytes, by a pod %t: %d", method, n, relayed, resp.Status)
				}
			}
		}
	}
	for n, want := range map[int]int{50: http.StatusSwitchingProtocols, 70: http.StatusBadGateway} {
		if resp := send(http.MethodGet, fmt.Sprint("/api?n=", n), true, true); resp.Status != want {
			t.Errorf("upgrade with %d headers of 1,000 bytes: %d", n, resp.Status)
		}
	}
}

// connection is a client's connection with an address.
type connection struct {
	exchange.Conn
	from net.Addr
}

func (c connection) RemoteAddr() net.Addr { return c.from }

// Upstream learns the address of a client, after those that the client itself tells of.
func TestForwardedFor(t *testing.T) {
	tcp := &net.TCPAddr{IP: net.ParseIP("192.0.2.7"), Port: 4711}
	for name, test := range map[string]struct {
		conn exchange.Conn
		told []string
		want []string
	}{
		"client":         {connection{from: tcp}, nil, []string{"192.0.2.7"}},
		"client of IPv6": {connection{from: &net.TCPAddr{IP: net.ParseIP("2001:db8::7"), Port: 1}}, nil, []string{"2001:db8::7"}},
		"behind a proxy": {connection{from: tcp}, []string{"198.51.100.1"}, []string{"198.51.100.1, 192.0.2.7"}},
		"behind two":     {connection{from: tcp}, []string{"198.51.100.1", "203.0.113.1"}, []string{"198.51.100.1, 203.0.113.1, 192.0.2.7"}},
		"itself":         {nil, nil, nil},
	} {
		x := &roundTrip{lifetime: lifetime{Request: &exchange.Request{Method: http.MethodGet, Target: "/api", Header: http.Header{}, Conn: test.conn}}}
		if test.told != nil {
			x.Header["X-Forwarded-For"] = test.told
		}
		out, err := x.outgoing(t.Context(), &url.URL{Scheme: "https", Host: "upstream"}, nil)
		if err != nil || !slices.Equal(out.Header.Values("X-Forwarded-For"), test.want) {
			t.Errorf("%s: %q, %v", name, out.Header.Values("X-Forwarded-For"), err)
		}
		if !slices.Equal(x.Header.Values("X-Forwarded-For"), test.told) {
			t.Errorf("%s: the client's request has changed: %q", name, x.Header)
		}
	}
}

// A response may begin before a long upload to a pod or service ends. The rest of the upload is not
// lost.
func TestUploadOverlapsResponse(t *testing.T) {
	const rest = 1 << 20
	f := overTLS(t, func(w http.ResponseWriter, r *http.Request) {
		first := make([]byte, 1)
		_, _ = io.ReadFull(r.Body, first)
		_, _ = w.Write(first)
		w.(http.Flusher).Flush()
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	})
	for _, token := range []string{"", "Bearer a"} {
		from, upload := io.Pipe()
		req := &exchange.Request{
			Method: http.MethodPost, Target: "/api/v1/namespaces/ns/services/a/proxy/", Header: http.Header{}, Client: &watchedClient{},
			Body: &exchange.Body{From: from, Length: 1 + rest},
		}
		if token != "" {
			req.Header.Set("Authorization", token)
		}
		go func() { _, _ = upload.Write([]byte("a")) }()
		resp := f.Send(t.Context(), context.Background(), context.Background(), req, &Attempt{Lasts: true})
		if _, err := io.ReadFull(resp.Body.(io.Reader), make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = upload.Write(make([]byte, rest)) // the response shows whether it succeeded
			_ = upload.Close()
		}()
		if got, err := io.ReadAll(resp.Body.(io.Reader)); err != nil || string(got) != fmt.Sprint(rest, nil) {
			t.Errorf("with %q: upstream received %s, %v", token, got, err)
		}
		resp.Close(0)
	}
}
