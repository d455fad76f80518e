package upstream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

// fakeUpstream is an apiserver for one resource, configmaps, behind an http.RoundTripper. It stores
// objects with revisions. Tests can drop its watch history and can cut or stall its streams. It
// does no I/O, so tests can run it in synctest's time.
type fakeUpstream struct {
	mu struct {
		sync.Mutex
		takes     time.Duration            // for each request
		slow      map[string]time.Duration // in addition, by verb; "state" is what a watch sends first, "refusal" its 410
		rev       uint64
		objects   map[string]string // name to JSON
		uids      int
		history   []fakeEvent
		oldest    uint64        // watches must start here or later
		compacted uint64        // lists must be for this revision or later
		changed   chan struct{} // closed and replaced by every change
		cut       chan struct{} // closed and replaced to end all streams
		stalled   bool          // streams send nothing, except side watches
		deaf      int           // so many first watches send only bookmarks at their last revision, with each change
		down      error         // if set, every request fails with it
		noStream  int           // the status of a refusal of sendInitialEvents; 0 for none
		noWatch   bool          // other watches are refused with 406
		requests  map[string]int
		version   string            // the server's version; if empty, it is forbidden to read
		failing   string            // requests of this verb fail with 500
		warning   string            // comes with every probe
		aside     uint64            // revisions used by other resources; bookmarks show them
		others    []otherEvent      // writes to other resources, which their own watches show
		held      string            // the ledger's watch of this resource sends nothing
		apart     map[string]uint64 // resources in another etcd, with its revision
		more      string            // further resources in discovery
		// answer answers requests. It returns nil for the fake's own response.
		answer func(*http.Request) (*http.Response, error)
	}
}

// otherEvent is a write to another resource.
type otherEvent struct {
	rev      uint64
	resource string
}

type fakeEvent struct {
	rev    uint64
	kind   string
	object string
}

func (e fakeEvent) name() string { return gjson.Get(e.object, "metadata.name").String() }

func newFake() *fakeUpstream {
	f := &fakeUpstream{}
	f.mu.rev = 100
	f.mu.version = "v1.36.3"
	f.mu.oldest, f.mu.compacted = 100, 100
	f.mu.objects = map[string]string{}
	f.mu.requests = map[string]int{}
	f.mu.changed, f.mu.cut = make(chan struct{}), make(chan struct{})
	return f
}

func (f *fakeUpstream) locked(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.mu.changed)
	f.mu.changed = make(chan struct{})
}

// set creates or updates an object.
func (f *fakeUpstream) set(name, value string) {
	f.locked(func() {
		f.mu.rev++
		kind := "MODIFIED"
		uid := gjson.Get(f.mu.objects[name], "metadata.uid").String()
		if uid == "" {
			f.mu.uids++
			kind, uid = "ADDED", fmt.Sprintf("uid-%d", f.mu.uids)
		}
		f.mu.objects[name] = objectJSON(name, uid, f.mu.rev, value)
		f.mu.history = append(f.mu.history, fakeEvent{f.mu.rev, kind, f.mu.objects[name]})
	})
}

func objectJSON(name, uid string, rv uint64, value string) string {
	return fmt.Sprintf(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q,"namespace":"ns","uid":%q,"resourceVersion":"%d"},"data":{"v":%q}}`,
		name, uid, rv, value)
}

func (f *fakeUpstream) remove(name string) {
	f.locked(func() {
		if f.mu.objects[name] != "" {
			f.removeLocked("DELETED", name)
		}
	})
}

// expire removes objects at one revision, like a lease that expires.
func (f *fakeUpstream) expire(names ...string) {
	f.locked(func() { f.removeLocked("DELETED", names...) })
}

// lost is the kind of a deletion that no stream shows.
const lost = "LOST"

// lose removes an object. No stream shows the deletion.
func (f *fakeUpstream) lose(name string) { f.locked(func() { f.removeLocked(lost, name) }) }

func (f *fakeUpstream) removeLocked(kind string, names ...string) {
	f.mu.rev++
	for _, name := range names {
		old := f.mu.objects[name]
		rv := gjson.Get(old, "metadata.resourceVersion").String()
		gone := strings.Replace(old, `"resourceVersion":"`+rv+`"`, fmt.Sprintf(`"resourceVersion":"%d"`, f.mu.rev), 1)
		delete(f.mu.objects, name)
		f.mu.history = append(f.mu.history, fakeEvent{f.mu.rev, kind, gone})
	}
}

// restore replaces the cluster with an empty one at a revision, like a restore of etcd. Watches must
// start at oldest or later.
func (f *fakeUpstream) restore(rev, oldest uint64) {
	f.locked(func() {
		f.mu.rev, f.mu.oldest, f.mu.history = rev, oldest, nil
		clear(f.mu.objects)
	})
}

// revision returns the present revision.
func (f *fakeUpstream) revision() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.rev
}

// cutStreams ends every open watch. If forget is true, it also drops the history, like a restart.
func (f *fakeUpstream) cutStreams(forget bool) {
	f.locked(func() {
		if forget {
			f.mu.oldest = f.mu.rev
		}
		close(f.mu.cut)
		f.mu.cut = make(chan struct{})
	})
}

// elsewhere writes to another resource. No stream shows this write.
func (f *fakeUpstream) elsewhere() { f.locked(func() { f.mu.rev++ }) }

// other writes to another resource. That resource's own watch shows this write.
func (f *fakeUpstream) other(resource string) {
	f.locked(func() {
		f.mu.rev++
		f.mu.others = append(f.mu.others, otherEvent{f.mu.rev, resource})
	})
}

// stall makes streams silent or ends the silence.
func (f *fakeUpstream) stall(on bool) { f.locked(func() { f.mu.stalled = on }) }

// bookmark makes streams send a bookmark at a revision of another resource.
func (f *fakeUpstream) bookmark() {
	f.locked(func() {
		f.mu.rev++
		f.mu.history = append(f.mu.history, fakeEvent{f.mu.rev, "BOOKMARK", bookmarkJSON(f.mu.rev, false)})
	})
}

// slowState makes watches send their initial state after some time.
func (f *fakeUpstream) slowState(takes time.Duration) {
	f.locked(func() { f.mu.slow = map[string]time.Duration{"state": takes} })
}

// delays sets the duration of probes.
func (f *fakeUpstream) delays(probe time.Duration) {
	f.locked(func() { f.mu.slow = map[string]time.Duration{"probe": probe} })
}

// answers sets a function that answers requests. It returns nil for the fake's own response.
func (f *fakeUpstream) answers(answer func(*http.Request) (*http.Response, error)) {
	f.locked(func() { f.mu.answer = answer })
}

// count returns the number of requests of a verb so far. "open" are the ledger's open watches, and "ledger"
// with a path those of a resource so far.
func (f *fakeUpstream) count(verb string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.requests[verb]
}

// state returns the resourceVersions of the present objects, by name.
func (f *fakeUpstream) state() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.mu.objects)
}

var errDown = errors.New("connection refused")

const longEnough = 5 * time.Minute

// revLocked returns the revision of a resource's etcd.
func (f *fakeUpstream) revLocked(collection string) uint64 {
	for resource, rev := range f.mu.apart {
		if strings.HasSuffix(collection, "/"+resource) {
			return rev
		}
	}
	return f.mu.rev
}

// ledgerLocked answers a metadata watch of another resource.
func (f *fakeUpstream) ledgerLocked(req *http.Request) *http.Response {
	resource := path.Base(req.URL.Path)
	from, _ := strconv.ParseUint(req.URL.Query().Get("resourceVersion"), 10, 64)
	life, _ := strconv.Atoi(req.URL.Query().Get("timeoutSeconds"))
	return f.streamLocked(req.Context(), 0, time.Duration(life)*time.Second, nil, func() (frames []string) {
		if f.mu.held == resource {
			return nil
		}
		for _, e := range f.mu.others {
			if e.rev > from && e.resource == resource {
				frames, from = append(frames, string(metadataFrame(e.rev))), e.rev
			}
		}
		return frames
	})
}

// metadataFrame returns an event with an object's metadata at a revision.
func metadataFrame(rev uint64) []byte {
	o, _ := (&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns", ResourceVersion: strconv.FormatUint(rev, 10)}}).Marshal()
	o, _ = (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, Raw: o}).Marshal()
	event, _ := (&metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: append(slices.Clone(client.ProtobufPrefix), o...)}}).Marshal()
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(event))), event...)
}

// newFeeds returns feeds that use a single server.
func newFeeds(t *testing.T, way http.RoundTripper, registry prometheus.Registerer, options feed.Options, log *zap.Logger) *Feeds {
	t.Helper()
	metrics := NewMetrics(registry)
	alone, err := client.NewServers(t.Context(), []client.Server{{Base: fakeURL, Transport: way}}, metrics.Servers, metrics.Client, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	return NewFeeds(alone.Client(way, metrics.Client), alone, metrics, options, log)
}

var fakeURL = &url.URL{Scheme: "https", Host: "fake"}
