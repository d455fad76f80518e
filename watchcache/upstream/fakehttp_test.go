package upstream

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// RoundTrip implements http.RoundTripper.
func (f *fakeUpstream) RoundTrip(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	answer := f.mu.answer
	if isLedgerWatch(req) {
		f.mu.requests["ledger "+req.URL.Path]++
		f.mu.requests["open"]++
		context.AfterFunc(req.Context(), func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.mu.requests["open"]--
		})
	}
	f.mu.Unlock()
	if answer != nil {
		if resp, err := answer(req); resp != nil || err != nil {
			return resp, err
		}
	}
	return f.respond(req)
}

func (f *fakeUpstream) respond(req *http.Request) (resp *http.Response, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if takes := f.mu.takes; takes > 0 && !f.passLocked(req.Context(), takes) {
		return nil, req.Context().Err()
	}
	q := req.URL.Query()
	verb := "list"
	switch {
	case req.URL.Path == "/readyz":
		verb = "ready"
	case req.URL.Path == "/api/v1":
		verb = "discover"
	case req.URL.Path == "/version":
		verb = "origin"
	case req.URL.Path == "/apis":
		verb = "groups"
	case isLedgerWatch(req):
		verb = "ledger"
	case strings.Contains(req.URL.Path, client.NoSuchNamespace) && q.Get("watch") != "":
		verb = "nothing"
	case strings.Contains(req.URL.Path, client.NoSuchNamespace), strings.Contains(q.Get("fieldSelector"), client.NoSuchName):
		verb = "probe"
	case req.Header.Get("Accept") == client.AcceptProtobufMetadata:
		verb = "metadata"
	case q.Get("timeoutSeconds") != "":
		verb = "side-watch"
	case q.Get("watch") != "":
		verb = "watch"
	}
	f.mu.requests[verb]++
	if slow := f.mu.slow[verb]; slow > 0 {
		defer func() { // delay the response, but not the read of the state
			if !f.passLocked(req.Context(), slow) && err == nil {
				_ = resp.Body.Close()
				resp, err = nil, req.Context().Err()
			}
		}()
	}
	if f.mu.down != nil {
		return nil, f.mu.down
	}
	if verb == f.mu.failing {
		return reply(500, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","code":500}`), nil
	}
	switch verb {
	case "ready":
		return reply(200, "ok"), nil
	case "origin":
		if req.URL.Path == "/version" && f.mu.version == "" {
			return reply(403, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`), nil
		}
		return reply(200, fmt.Sprintf(`{"gitVersion":%q}`, f.mu.version)), nil
	case "groups":
		return reply(200, `{"kind":"APIGroupList","groups":[]}`), nil
	case "ledger":
		return f.ledgerLocked(req), nil
	case "discover":
		return reply(200, `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"configmaps","namespaced":true,"kind":"ConfigMap","verbs":["get","list","watch"]},{"name":"events","namespaced":true,"kind":"ConfigMap","verbs":["get","list","watch"]},{"name":"namespaces","namespaced":false,"kind":"Namespace","verbs":["get","list","watch"]},{"name":"leases","namespaced":true,"kind":"Lease","verbs":["get","list","watch"]},{"name":"bindings","namespaced":true,"kind":"Binding","verbs":["create"]}`+f.mu.more+`]}`), nil
	case "nothing":
		return reply(200, `{"type":"BOOKMARK","object":`+bookmarkJSON(f.mu.rev, true)+"}\n"), nil
	case "probe":
		resp := reply(200, fmt.Sprintf(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"%d"},"items":[]}`, f.revLocked(req.URL.Path)))
		if f.mu.warning != "" {
			resp.Header.Set("Warning", f.mu.warning)
		}
		return resp, nil
	case "watch":
		return f.watchLocked(req.Context(), q.Get("resourceVersion"), q.Get("sendInitialEvents") == "true")
	case "metadata":
		return f.metadataLocked(q)
	case "side-watch":
		return f.sideWatchLocked(req.Context(), q.Get("resourceVersion")), nil
	}
	if q.Get("resourceVersionMatch") == "Exact" {
		at, _ := strconv.ParseUint(q.Get("resourceVersion"), 10, 64)
		if at < f.mu.compacted {
			return reply(410, expiredStatus), nil
		}
		if at == f.mu.rev {
			return listOf(f.mu.objects, at, "", "")
		}
		return listOf(f.stateAtLocked(at), at, "", "")
	}
	if at, from, further := strings.Cut(q.Get("continue"), "/"); further { // a later page
		rev, _ := strconv.ParseUint(at, 10, 64)
		return listOf(f.stateAtLocked(rev), rev, q.Get("limit"), from)
	}
	return listOf(f.mu.objects, f.mu.rev, q.Get("limit"), "")
}

// passLocked lets time pass, without the lock. It reports whether the request still goes on.
func (f *fakeUpstream) passLocked(ctx context.Context, d time.Duration) bool {
	f.mu.Unlock()
	defer f.mu.Lock()
	return client.Sleep(ctx, d)
}

const expiredStatus = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`

// stateAtLocked returns the state at a revision.
func (f *fakeUpstream) stateAtLocked(rev uint64) map[string]string {
	state := map[string]string{}
	for _, e := range f.mu.history {
		if e.rev > rev {
			break
		}
		if e.kind == "BOOKMARK" {
			continue
		}
		if state[e.name()] = e.object; e.kind == "DELETED" || e.kind == lost {
			delete(state, e.name())
		}
	}
	return state
}

// listOf returns a list of a state's objects whose names are not below start.
func listOf(objects map[string]string, rev uint64, limit, start string) (*http.Response, error) {
	names := slices.Sorted(maps.Keys(objects))
	names = names[sortedIndex(names, start):]
	n, next := len(names), ""
	if l, _ := strconv.Atoi(limit); l > 0 && l < n {
		n, next = l, fmt.Sprintf(`,"continue":"%d/%s"`, rev, names[l])
	}
	var items []string
	for _, name := range names[:n] {
		items = append(items, strings.Replace(objects[name], `"kind":"ConfigMap","apiVersion":"v1",`, "", 1))
	}
	return reply(200, fmt.Sprintf(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"%d"%s},"items":[%s]}`,
		rev, next, strings.Join(items, ","))), nil
}

func sortedIndex(names []string, name string) int {
	i, _ := slices.BinarySearch(names, name)
	return i
}

func (f *fakeUpstream) watchLocked(ctx context.Context, rv string, initial bool) (*http.Response, error) {
	if !initial && f.mu.noWatch {
		return reply(406, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotAcceptable","code":406}`), nil
	}
	if initial && f.mu.noStream != 0 {
		reason := map[int]string{422: "Invalid", 406: "NotAcceptable"}[f.mu.noStream]
		return reply(f.mu.noStream, fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, f.mu.noStream)), nil
	}
	from, _ := strconv.ParseUint(rv, 10, 64)
	var first []string
	var after time.Duration
	if initial {
		f.mu.requests["state"]++
		after = f.mu.slow["state"]
	}
	switch {
	case from > f.mu.rev && initial:
		first = []string{fmt.Sprintf(`{"type":"ERROR","object":{"kind":"Status","status":"Failure","reason":"Timeout","message":"Too large resource version: %d, current: %d","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],"retryAfterSeconds":1},"code":504}}`, from, f.mu.rev), ""}
	case initial:
		for _, name := range slices.Sorted(maps.Keys(f.mu.objects)) {
			first = append(first, `{"type":"ADDED","object":`+f.mu.objects[name]+`}`)
		}
		if !f.mu.stalled { // otherwise the state is not complete
			first = append(first, `{"type":"BOOKMARK","object":`+bookmarkJSON(f.mu.rev, true)+`}`)
		}
		from = f.mu.rev
	case from < f.mu.oldest:
		first, after = []string{tooOld(from, f.mu.oldest), ""}, f.mu.slow["refusal"]
	}
	opened := f.mu.requests["watch"]
	return f.streamLocked(ctx, after, 0, first, func() (lines []string) {
		switch {
		case f.mu.stalled:
			return nil
		case opened <= f.mu.deaf:
			return []string{`{"type":"BOOKMARK","object":` + bookmarkJSON(from, false) + "}\n"}
		}
		lines, from = f.eventsLocked(from)
		return lines
	}), nil
}

// eventsLocked returns the lines of a watch after a revision, and the last one's revision.
func (f *fakeUpstream) eventsLocked(from uint64) (lines []string, last uint64) {
	last = from
	for _, e := range f.mu.history {
		if e.rev > from && e.kind != lost {
			lines, last = append(lines, `{"type":"`+e.kind+`","object":`+e.object+"}\n"), e.rev
		}
	}
	return lines, last
}

func (f *fakeUpstream) metadataLocked(q url.Values) (*http.Response, error) {
	objects, rev := f.mu.objects, f.mu.rev
	if at, _ := strconv.ParseUint(q.Get("resourceVersion"), 10, 64); q.Get("resourceVersionMatch") == "Exact" {
		if at < f.mu.compacted {
			return reply(410, expiredStatus), nil
		}
		if at < rev {
			objects, rev = f.stateAtLocked(at), at
		}
	}
	list := metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatUint(rev, 10)}}
	names := slices.Sorted(maps.Keys(objects))
	if q.Get("limit") == "1" && len(names) > 1 {
		left := int64(len(names) - 1)
		list.Continue, list.RemainingItemCount, names = "more", &left, names[:1]
	}
	for _, name := range names {
		m := gjson.GetMany(objects[name], "metadata.namespace", "metadata.uid", "metadata.resourceVersion")
		list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: m[0].String(), UID: types.UID(m[1].String()), ResourceVersion: m[2].String(),
		}})
	}
	raw, err := list.Marshal()
	if err != nil {
		return nil, err
	}
	body, err := (&runtime.Unknown{Raw: raw}).Marshal()
	return reply(200, string(client.ProtobufPrefix)+string(body)), err
}

// sideWatchLocked answers a watch with a timeout of three seconds. It sends all events after the
// watch's start, a bookmark after one second, and ends the watch.
func (f *fakeUpstream) sideWatchLocked(ctx context.Context, rv string) *http.Response {
	from, _ := strconv.ParseUint(rv, 10, 64)
	if from < f.mu.oldest {
		return f.streamLocked(ctx, 0, 0, []string{tooOld(from, f.mu.oldest), ""}, nil)
	}
	opened, bookmark := time.Now(), false
	time.AfterFunc(time.Second, func() { f.locked(func() {}) }) // so next is called
	return f.streamLocked(ctx, 0, 3*time.Second, nil, func() (lines []string) {
		lines, from = f.eventsLocked(from)
		lines = slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, "BOOKMARK") })
		if !bookmark && time.Since(opened) >= time.Second {
			bookmark = true
			lines = append(lines, `{"type":"BOOKMARK","object":`+bookmarkJSON(f.mu.rev, false)+"}\n")
		}
		return lines
	})
}

func tooOld(from, oldest uint64) string {
	return fmt.Sprintf(`{"type":"ERROR","object":{"kind":"Status","status":"Failure","reason":"Expired","message":"too old resource version: %d (%d)","code":410}}`, from, oldest)
}

// streamLocked returns a watch that sends first after some time, and then what next returns after each
// change. Next is called with the lock. If first ends with "", the watch ends there. Otherwise it ends
// after life, unless life is 0.
func (f *fakeUpstream) streamLocked(ctx context.Context, after, life time.Duration, first []string, next func() []string) *http.Response {
	r, w := io.Pipe()
	cut := f.mu.cut
	var over <-chan time.Time
	if life > 0 {
		over = time.After(life)
	}
	go func() {
		if !client.Sleep(ctx, after) {
			w.CloseWithError(ctx.Err())
			return
		}
		for _, line := range first {
			if line == "" {
				w.Close()
				return
			}
			if _, err := io.WriteString(w, line+"\n"); err != nil {
				return
			}
		}
		for {
			f.mu.Lock()
			changed, lines := f.mu.changed, next()
			f.mu.Unlock()
			for _, line := range lines {
				select {
				case <-cut:
					w.CloseWithError(io.ErrUnexpectedEOF) // in the middle of a batch
					return
				default:
				}
				if _, err := io.WriteString(w, line); err != nil {
					return
				}
			}
			select {
			case <-changed:
			case <-cut:
				w.Close()
				return
			case <-over:
				w.Close()
				return
			case <-ctx.Done():
				w.CloseWithError(ctx.Err())
				return
			}
		}
	}()
	return &http.Response{StatusCode: 200, Status: "200 OK", Header: jsonHeader(), Body: r}
}

// silentAfter returns a watch that sends some lines, and then nothing until the request ends.
func silentAfter(req *http.Request, lines string) *http.Response {
	resp, _ := piped(req)
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(strings.NewReader(lines), resp.Body), resp.Body}
	return resp
}

// piped returns a response whose body is what is written to w, until the request ends.
func piped(req *http.Request) (resp *http.Response, w *io.PipeWriter) {
	r, w := io.Pipe()
	context.AfterFunc(req.Context(), func() { w.CloseWithError(req.Context().Err()) })
	resp = reply(200, "")
	resp.Body = r
	return resp, w
}

func bookmarkJSON(rv uint64, end bool) string {
	annotations := ""
	if end {
		annotations = `,"annotations":{"k8s.io/initial-events-end":"true"}`
	}
	return fmt.Sprintf(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"%d"%s}}`, rv, annotations)
}

func reply(code int, body string) *http.Response {
	return &http.Response{
		StatusCode: code, Status: fmt.Sprintf("%d %s", code, http.StatusText(code)), Header: jsonHeader(),
		Body: io.NopCloser(strings.NewReader(body)),
	}
}

func jsonHeader() http.Header { return http.Header{"Content-Type": {client.MimeJSON}} }
