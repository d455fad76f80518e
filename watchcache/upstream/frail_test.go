package upstream

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// frail is an upstream with many resources that all have the same objects. It can go down like an
// apiserver. It records the time and path of each request.
type frail struct {
	*fakeUpstream
	mu struct {
		sync.Mutex
		asked   []request
		state   state
		refuses map[string]int // status codes, by resource
		expires bool           // each stream ends with 410 after the state
		private bool           // the proxy may not read /readyz
	}
}

type request struct {
	at   time.Time
	path string
}

type state int

const (
	up       state = iota
	away           // no listener
	unready        // it responds, but is not ready yet
	refusing       // it has just started and refuses all requests, because it has no access rules yet
	starting       // the same, but it reports that it is not ready
	breaking       // it reports that it is ready, but breaks off all other requests
)

func newFrail() *frail {
	f := &frail{fakeUpstream: newFake()}
	f.fakeUpstream.mu.takes = takes
	f.mu.refuses = map[string]int{}
	return f
}

func resourceName(i int) string { return fmt.Sprintf("r%02d", i) }

// RoundTrip implements http.RoundTripper.
func (f *frail) RoundTrip(req *http.Request) (*http.Response, error) {
	path := req.URL.Path
	f.mu.Lock()
	f.mu.asked = append(f.mu.asked, request{time.Now(), path})
	state, code, expires := f.mu.state, f.mu.refuses[path[strings.LastIndex(path, "/")+1:]], f.mu.expires
	private := f.mu.private && path == "/readyz"
	f.mu.Unlock()
	switch {
	case state == away, state == breaking && path != "/readyz":
		return nil, errDown
	case state == refusing, private, state == starting && path != "/readyz":
		return statusReply(403), nil
	case path == "/readyz" && (state == unready || state == starting):
		return reply(500, "not yet"), nil
	case state == unready:
		return statusReply(503), nil
	case code != 0:
		return statusReply(code), nil
	case path == "/api/v1":
		var all []string
		for i := range manyFeeds {
			all = append(all, fmt.Sprintf(`{"name":%q,"namespaced":true,"kind":"ConfigMap","verbs":["get","list","watch"]}`, resourceName(i)))
		}
		return reply(200, `{"kind":"APIResourceList","groupVersion":"v1","resources":[`+strings.Join(all, ",")+`]}`), nil
	}
	resp, err := f.fakeUpstream.RoundTrip(req)
	if err == nil && expires && req.URL.Query().Get("sendInitialEvents") != "" {
		resp.Body.Close()
		resp.Body = io.NopCloser(strings.NewReader(f.stateAndEnd()))
	}
	return resp, err
}

func statusReply(code int) *http.Response {
	reasons := map[int]metav1.StatusReason{403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound, 503: metav1.StatusReasonServiceUnavailable}
	return reply(code, fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reasons[code], code))
}

// stateAndEnd is a stream that ends with 410 right after the state.
func (f *frail) stateAndEnd() string {
	f.fakeUpstream.mu.Lock()
	defer f.fakeUpstream.mu.Unlock()
	var lines strings.Builder
	for _, o := range f.fakeUpstream.mu.objects {
		lines.WriteString(`{"type":"ADDED","object":` + o + "}\n")
	}
	return lines.String() + `{"type":"BOOKMARK","object":` + bookmarkJSON(f.fakeUpstream.mu.rev, true) + "}\n" + tooOld(1, 2) + "\n"
}

// refuse makes upstream refuse a resource with a status code, or, with 0, no longer.
func (f *frail) refuse(resource string, code int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.refuses[resource] = code
}

func (f *frail) turn(to state) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.state = to
}

// since returns the requests after a moment.
func (f *frail) since(began time.Time) (all []request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.mu.asked {
		if !r.at.Before(began) {
			all = append(all, r)
		}
	}
	return all
}

// leave ends all streams and shuts upstream down. Upstream returns with a new history.
func (f *frail) leave() {
	f.turn(away)
	f.elsewhere()
	f.cutStreams(true)
}
