package access

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

const (
	smuggleMarker = "nobody-may-read-this"
	smugglePublic = "all-may-read-this"
	smuggleAgent  = "smuggle-attempt-"
	smuggleCached = "/api/v1/namespaces/default/configmaps?resourceVersion=0" // what bob and carol may read
)

// smugglers are clients with few or no rights. The proxy in front of the apiserver has all rights.
type smugglers struct {
	*world
	front   *front
	callers []*caller
	uids    map[string]string // uids of protected objects, by namespace
}

func newSmugglers(t *testing.T) *smugglers {
	t.Helper()
	w := sharedWorld(t)
	s := &smugglers{world: w, front: w.front(t, masterProxy, ""), uids: map[string]string{}}
	s.callers = []*caller{
		{name: "token", token: tokenOf("bob")},
		{name: "certificate", cert: w.ca.SignT(t, time.Hour, "carol", "crew")},
		{name: "nobody"},
	}
	for namespace := range precious {
		made, err := w.admin.CoreV1().ConfigMaps(namespace).Get(t.Context(), "precious", metav1.GetOptions{})
		cluster.MustT(t, err)
		s.uids[namespace] = string(made.UID)
	}
	return s
}

// precious maps each namespace that has protected configmaps to the text in them. bob and carol may
// only list the configmaps of namespace default.
var precious = map[string]string{"default": smugglePublic, "kube-system": smuggleMarker}

func (w *world) createPrecious(ctx context.Context) error {
	meta := func(value string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "precious", Annotations: map[string]string{"marker": value}}
	}
	pod := cluster.NewPod("precious")
	pod.ObjectMeta = meta(smuggleMarker)
	var errs []error
	for namespace, value := range precious {
		_, mapErr := w.admin.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta(value)}, metav1.CreateOptions{})
		_, secretErr := w.admin.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{ObjectMeta: meta(smuggleMarker)}, metav1.CreateOptions{})
		_, podErr := w.admin.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		errs = append(errs, mapErr, secretErr, podErr)
	}
	return errors.Join(errs...)
}

// try makes every attempt at the proxy and then at the apiserver. No attempt may act as another
// user, change an object, or read more from the proxy than from the apiserver.
func (w *smugglers) try(t *testing.T, all func(*testing.T, *server) []*smuggled) {
	t.Helper()
	w.prove(t)
	w.audit.SkipT(t)
	proxied := all(t, w.front.server)
	w.checkIdentities(t)
	w.checkStanding(t)
	w.prove(t) // the proxy still answers
	for i, want := range all(t, w.server) {
		got := proxied[i]
		if got.data() > want.data() && !got.attempt.lenient {
			t.Errorf("%v: the apiserver answers %d times with data, the proxy %d times\napiserver: %.600q\nproxy: %.600q",
				got, want.data(), got.data(), want.answers, got.answers)
		}
		if where := bytes.Index(got.answers, []byte(smuggleMarker)); where >= 0 {
			t.Errorf("%v: the proxy shows the secret: %.300q", got, got.answers[max(0, where-100):])
		}
	}
}

// A client with few or no rights can send any bytes. The proxy must not act as another user at the
// apiserver, must not show more than the apiserver, and must not change an object.
func TestSmuggling(t *testing.T) {
	w := newSmugglers(t)
	attempts := smuggleAttempts()
	if len(attempts) < 60 {
		t.Fatalf("only %d attempts", len(attempts))
	}
	w.try(t, func(t *testing.T, s *server) []*smuggled { return w.smuggleAll(t, s, attempts) })
}

// smuggleAttempt is data to send over a connection. The first & stands for the headers of every
// honest request.
type smuggleAttempt struct {
	name string
	raw  string
	// lenient is true if the proxy may answer although the apiserver does not. A comment says why.
	lenient bool
}

// smuggled is the result of an attempt.
type smuggled struct {
	attempt smuggleAttempt
	caller  *caller
	answers []byte
	codes   []int
}

func (s *smuggled) String() string { return s.caller.name + ": " + s.attempt.name }

// data returns the number of answers that contain data.
func (s *smuggled) data() (n int) {
	for _, code := range s.codes {
		if code/100 == 2 {
			n++
		}
	}
	return n
}

// smuggleAll makes every attempt as every caller, several concurrently. The results are in the
// order of the attempts.
func (w *smugglers) smuggleAll(t *testing.T, to *server, attempts []smuggleAttempt) (all []*smuggled) {
	t.Helper()
	for _, attempt := range attempts {
		for _, caller := range w.callers {
			all = append(all, &smuggled{attempt: attempt, caller: caller})
		}
	}
	const atATime = 32
	if err := workload.Parallel(t.Context(), len(all), atATime, func(ctx context.Context, i int) error {
		return all[i].smuggle(ctx, to, fmt.Sprint(smuggleAgent, i))
	}); err != nil {
		t.Error(err)
	}
	return all
}

// smuggleEnd follows each attempt. Whatever the server has made of the attempt, it closes the
// connection after one of these requests, or after an answer to a part of one: a server that still
// waits for a body takes the first ones for it. Nobody may read their path, so they get no data.
var smuggleEnd = strings.Repeat("GET /end HTTP/1.1\r\nHost: localhost\r\nUser-Agent: "+smuggleAgent+"end\r\nConnection: close\r\n\r\n", 20)

// smuggle sends an attempt and reads until the server closes the connection.
func (s *smuggled) smuggle(ctx context.Context, to *server, agent string) error {
	conn, err := to.connect(ctx, s.caller, "http/1.1")
	if err != nil {
		return fmt.Errorf("%v: %w", s, err)
	}
	defer conn.Close()
	honest := "Host: localhost\r\nUser-Agent: " + agent
	if s.caller.token != "" {
		honest += "\r\nAuthorization: Bearer " + s.caller.token
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		io.WriteString(conn, strings.ReplaceAll(s.attempt.raw, "&", honest)+smuggleEnd) // fails if the server has already closed the connection
	}()
	s.answers, err = smuggleRead(conn)
	s.codes = smuggleCodes(s.answers)
	conn.Close()
	<-written
	if err != nil {
		return fmt.Errorf("%v: %w after %.600q", s, err, s.answers)
	}
	return nil
}

// connect opens a connection, with TLS negotiating the given protocol.
func (s *server) connect(ctx context.Context, c *caller, protocol string) (net.Conn, error) {
	config := s.endpoint(c).TLS.Clone()
	config.NextProtos = []string{protocol}
	ctx, cancel := context.WithTimeout(ctx, cluster.Limit)
	defer cancel()
	return (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", s.endpoint(c).Address())
}

// smuggleRead reads until the server closes the connection. It may do so without an answer.
func smuggleRead(conn net.Conn) (answers []byte, err error) {
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return nil, err
	}
	answers, err = io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return answers, fmt.Errorf("the server does not close the connection within %v", limit)
	}
	return answers, nil
}

// smuggleCodes returns the status codes of all answers, including broken ones.
func smuggleCodes(answers []byte) (codes []int) {
	from := bufio.NewReader(bytes.NewReader(answers))
	for {
		resp, err := http.ReadResponse(from, nil)
		if err != nil {
			if rest, _ := io.ReadAll(from); len(rest) > 0 && !errors.Is(err, io.ErrUnexpectedEOF) {
				codes = append(codes, bytes.Count(rest, []byte("HTTP/1.1 2"))*http.StatusOK)
			}
			return codes
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return append(codes, resp.StatusCode)
		}
		if resp.StatusCode >= http.StatusOK {
			codes = append(codes, resp.StatusCode)
		}
	}
}

// prove fills the caches and checks that each caller gets the expected answer.
func (w *smugglers) prove(t *testing.T) {
	t.Helper()
	for _, hot := range []string{
		"/api/v1/pods?resourceVersion=0", "/api/v1/configmaps?resourceVersion=0", smuggleHot,
		"/api/v1/namespaces/kube-system/pods/precious?resourceVersion=0",
	} {
		if got := w.front.must(t, w.world.callers["admin"], request{target: hot}); got.status != ok || !bytes.Contains(got.body, []byte(smuggleMarker)) {
			t.Fatalf("admin: %s: %d %.300s", hot, got.status, got.body)
		}
	}
	for i, want := range []int{ok, ok, unknown} {
		got := w.front.must(t, w.callers[i], request{target: smuggleCached})
		if got.status != want || (want == ok) != bytes.Contains(got.body, []byte(smugglePublic)) {
			t.Fatalf("%s: %d instead of %d: %.300s", w.callers[i].name, got.status, want, got.body)
		}
	}
}

// checkStanding checks that no object was created or deleted.
func (w *smugglers) checkStanding(t *testing.T) {
	t.Helper()
	for namespace, uid := range w.uids {
		configs := w.admin.CoreV1().ConfigMaps(namespace)
		got, err := configs.Get(t.Context(), "precious", metav1.GetOptions{})
		if err != nil || string(got.UID) != uid || got.DeletionTimestamp != nil {
			t.Errorf("the configmap in %s has gone: %v", namespace, err)
		}
		if _, err := w.admin.CoreV1().Pods(namespace).Get(t.Context(), "precious", metav1.GetOptions{}); err != nil {
			t.Errorf("the pod in %s has gone: %v", namespace, err)
		}
		if _, err := configs.Get(t.Context(), "smuggled", metav1.GetOptions{}); err == nil {
			t.Errorf("somebody has put a configmap into %s", namespace)
		}
	}
}

// checkIdentities checks that all users in the audit log are expected.
func (w *smugglers) checkIdentities(t *testing.T) {
	t.Helper()
	seen := map[string]int{}
	for _, r := range responses(w.audit.NextT(t)) {
		user := r.Effective().Username
		seen[user]++
		if !explained(r) {
			t.Errorf("nobody may have sent this as %s: %s %s, agent %q, answer %d", user, r.Verb, r.RequestURI, r.UserAgent, r.ResponseStatus.Code)
		}
	}
	for _, user := range []string{"bob", "carol"} {
		if seen[user] == 0 {
			t.Errorf("no attempt has arrived as %s: %v", user, seen)
		}
	}
}

// ownGets are the paths that proxies read for themselves: discovery, and who serves a group.
var ownGets = regexp.MustCompile(`^/(version|api(/v1)?|apis(/[^/?]+){0,2}|` +
	`apis/apiregistration\.k8s\.io/v1/apiservices/[^/?]+|apis/apiextensions\.k8s\.io/v1/customresourcedefinitions/[^/?]+)$`)

// explained reports whether the user of a request in the audit log is expected.
func explained(r cluster.AuditRecord) bool {
	switch user := r.Effective().Username; user {
	case "bob", "carol":
		return true
	case "": // no user: the request was refused or broken off before authentication
		return r.ResponseStatus.Code == unknown
	case "admin":
		return r.UserAgent == userAgent
	case masterProxy, proxyUser: // proxyUser: proxies that other tests share
		if r.Verb == "get" {
			return r.RequestURI == "/readyz" || strings.HasPrefix(r.UserAgent, "watchproxy") && ownGets.MatchString(r.RequestURI)
		}
		own := []string{"list", "watch", "create"} // feeds and reviews
		return strings.HasPrefix(r.UserAgent, "watchproxy") && slices.Contains(own, r.Verb) && !strings.Contains(r.RequestURI, "/secrets")
	default:
		return !strings.HasPrefix(r.UserAgent, smuggleAgent) && strings.HasPrefix(user, "system:apiserver")
	}
}
