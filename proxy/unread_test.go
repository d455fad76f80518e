package proxy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
)

// A forwarded watch that its client does not read holds memory in the transport, so it holds
// room. If there is none, it ends. Other watches hold no room.
func TestUnreadWatchesHoldRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const room = 4
		o := testOptions()
		o.Memory, o.Window, o.Limits.Stall = 2*room<<20, 1<<20, time.Minute
		event := make([]byte, 10<<10)
		var open atomic.Int64
		s, l := serveTo(t, forwardsAll{}, func(w http.ResponseWriter, r *http.Request) {
			open.Add(1)
			defer open.Add(-1)
			for r.Context().Err() == nil {
				if _, err := w.Write(event); err != nil {
					return
				}
				_ = http.NewResponseController(w).Flush()
				select {
				case <-time.After(100 * time.Millisecond):
				case <-r.Context().Done():
				}
			}
		}, o)
		reading := clientTo(t, l, "h2").open(t, "/api/v1/pods?watch=1")
		go func() { _, _ = io.Copy(io.Discard, reading.Body) }()
		const unread = room + 2
		for range unread {
			c := dialSlow(t, l, "h2")
			c.greet(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			c.pings = true
			if err := ask2(c.frames, 1, "/api/v1/pods?watch=1"); err != nil {
				t.Fatal(err)
			}
			go func() {
				c.ended()
				c.Close()
			}()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if held, ended := s.limits.queues.unread.Taken()/o.Window, testutil.ToFloat64(s.metrics.Limited.WithLabelValues("unread")); held != room || ended != unread-room {
			t.Errorf("%d watches hold room, %v have ended, want %d and %d", held, ended, room, unread-room)
		}
		if counted := watchesOf(s)[""]; open.Load() != room+1 || counted != unread+1 {
			t.Errorf("%d watches are open upstream, %d are counted, want %d and %d", open.Load(), counted, room+1, unread+1)
		}
		time.Sleep(2 * o.Limits.Stall)
		synctest.Wait()
		if held, counted := usersHold(s), watchesOf(s)[""]; held > o.Window/4 || open.Load() != 1 || counted != 1 {
			t.Errorf("after the stall timeout, %d bytes are held, %d watches are open upstream, %d are counted", held, open.Load(), counted)
		}
	})
}

// Requests of unknown clients hold their heads and bodies while they wait for a review. Their sum is
// bounded, however many connections and tokens a client makes up.
func TestUnauthenticatedRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const connections, streams, head = 3, 60, 16 << 10
		reviewed := make(chan struct{})
		config := behind(t, func(w http.ResponseWriter, _ *http.Request) {
			<-reviewed
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"authenticated":false}}`)
		})
		config.ContentConfig = rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}
		a, err := access.New(config, nil, access.Options{TokenTTL: time.Minute, AllowTTL: time.Minute, DenyTTL: time.Second}, prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		o := testOptions()
		o.Access, o.Strangers = a, 4<<20
		s, l := serveTo(t, forwardsAll{}, http.NotFound, o)
		for i := range connections {
			flood(t, dialSlow(t, l, "h2"), streams, head, func(j uint32) []string {
				return []string{"authorization", fmt.Sprint("Bearer made-up-", i, "-", j)}
			})
		}
		synctest.Wait()
		each := int64(2*head + exchange.BodyAhead)
		taken, most := s.limits.queues.strangers.Taken(), s.limits.queues.strangers.Capacity/2
		refused := testutil.ToFloat64(s.metrics.Limited.WithLabelValues("unauthenticated"))
		if taken > most || taken < most-2*each || refused < connections { // a refusal ends its connection
			t.Errorf("%v requests are refused, the others hold %d of %d bytes", refused, taken, most)
		}
		close(reviewed)
		waitFor(t, "the requests hold nothing", func() bool { return s.limits.queues.strangers.Taken() == 0 })
	})
}

// flood sends requests with bodies and long heads, and discards what it receives.
func flood(t *testing.T, c *slowClient, streams uint32, head int, header func(stream uint32) []string) {
	t.Helper()
	c.greet()
	go func() {
		for {
			if _, err := c.frames.ReadFrame(); err != nil {
				return
			}
		}
	}()
	padding := strings.Repeat("x", head)
	for j := range streams {
		p := http2.HeadersFrameParam{StreamID: 2*j + 1, EndHeaders: true}
		if err := openStream(c.frames, p, http.MethodPost, "/api/v1/pods", append(header(j), "padding", padding)...); err != nil {
			t.Fatal(err)
		}
	}
}

// Requests that wait for a review of the right to impersonate hold their heads and bodies. They
// count as requests of the certificate's owner, also if they share a review.
func TestImpersonatingRequestsAreBounded(t *testing.T) {
	ca, certificate := clientCertificate(t, "carla")
	synctest.Test(t, func(t *testing.T) {
		const connections, streams, head = 3, 200, 16 << 10
		reviewed := make(chan struct{})
		config := behind(t, func(w http.ResponseWriter, _ *http.Request) {
			<-reviewed
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1"}`)
		})
		config.ContentConfig = rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}
		a, err := access.New(config, ca, access.Options{TokenTTL: time.Minute, AllowTTL: time.Minute, DenyTTL: time.Second}, prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		o := testOptions()
		o.Access, o.Memory, o.TLS.ClientAuth = a, 4<<20, tls.RequestClientCert
		s, l := serveTo(t, forwardsAll{}, http.NotFound, o)
		for range connections {
			with := insecure("h2")
			with.Certificates = []tls.Certificate{certificate}
			c := &slowClient{Conn: tls.Client(dial(t, l), with), t: t}
			flood(t, c, streams, head, func(uint32) []string { return []string{"content-type", "application/json", "impersonate-user", "jane"} })
		}
		synctest.Wait()
		each := int64(2*head + exchange.BodyAhead)
		taken, most := s.limits.queues.memory.Taken(), s.limits.queues.memory.Capacity/2
		refused := testutil.ToFloat64(s.metrics.Limited.WithLabelValues("requests")) +
			testutil.ToFloat64(s.metrics.Limited.WithLabelValues("unauthenticated"))
		if admitted := connections*streams - int64(refused); taken > most || admitted == 0 || admitted*each > taken {
			t.Errorf("%d requests wait and hold %d of %d bytes", admitted, taken, most)
		}
		close(reviewed)
		waitFor(t, "the requests hold nothing", func() bool { return usersHold(s) == 0 })
	})
}

// clientCertificate returns a client's certificate, which is its own authority. The authority starts
// goroutines, so it cannot be created in a bubble.
func clientCertificate(t *testing.T, name string) (*access.ClientCA, tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{ // the clock of a bubble begins in 2000
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	ca, err := access.ClientCAFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ca.Run(t.Context()) }) // this context has ended, so the goroutines end
	return ca, tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}

// If there is no room for the bytes that a client does not read, its response ends, and the log names
// the user. If this happens often, only some lines are logged.
func TestUnreadResponsesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, lines := logging(Options{Fixed: Fixed{Window: 8}})
		s.limits.queues.unread = fair.NewPool(4, false)
		const ended = 10 * remarkBurst
		req := &exchange.Request{Identity: &access.Caller{User: &user.DefaultInfo{Name: "alice"}}}
		for range ended {
			defer s.upstream.guardUnread(req, io.NopCloser(strings.NewReader("events")), func() {}).Close()
		}
		time.Sleep(time.Minute)
		if n := testutil.ToFloat64(s.metrics.Limited.WithLabelValues("unread")); n != ended || lines.Len() != remarkBurst {
			t.Errorf("%v ended, %d are logged", n, lines.Len())
		}
		for _, line := range lines.All() {
			if name := line.ContextMap()["user"]; name != "alice" {
				t.Errorf("%s: the user is %v", line.Message, name)
			}
		}
	})
}

// However often an unread body is closed, its end is told once, and it holds nothing afterwards.
func TestUnreadBodyEndsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := logging(Options{Fixed: Fixed{Window: 1}})
		s.limits.queues.unread = fair.NewPool(4, false)
		closed := 0
		body := s.upstream.guardUnread(&exchange.Request{}, io.NopCloser(strings.NewReader("events")), func() { closed++ })
		time.Sleep(time.Minute)
		if taken := s.limits.queues.unread.Taken(); taken != 1 {
			t.Errorf("%d bytes are held", taken)
		}
		if _, err := body.Read(make([]byte, 1)); err != nil || s.limits.queues.unread.Taken() != 0 {
			t.Errorf("%v, and %d bytes are held after a read", err, s.limits.queues.unread.Taken())
		}
		time.Sleep(time.Minute)
		for range 2 {
			body.Close()
		}
		_, _ = body.Read(make([]byte, 1))
		time.Sleep(time.Minute)
		if s.limits.queues.unread.Taken() != 0 || closed != 1 {
			t.Errorf("%d bytes are held after the end, which was told %d times", s.limits.queues.unread.Taken(), closed)
		}
	})
}
