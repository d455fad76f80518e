package watchcache

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// Pods is the resource that most tests use.
var Pods = &object.Resource{
	GVR:        schema.GroupVersionResource{Version: "v1", Resource: "pods"},
	Kind:       "Pod",
	ListKind:   "PodList",
	Namespaced: true,
	Fields:     []object.Field{{Name: "spec.nodeName", Paths: []string{"spec.nodeName"}, Kept: true}, {Name: "status.phase", Paths: []string{"status.phase"}}},
}

// Roomy are limits that tests reach only on purpose.
var Roomy = Limits{Age: time.Hour, Events: 1 << 30, Bytes: 1 << 40}

// Noon is an arbitrary time.
var Noon = time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC)

// Pod contains the parts of a pod that tests vary.
type Pod struct {
	Namespace, Name, UID string
	RV                   uint64
	Labels               map[string]string
	Node, Phase          string
	Pad                  int // bytes of padding
}

// JSON returns the pod as an item of a list.
func (p Pod) JSON() []byte {
	quote := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return string(b)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `{"metadata":{"name":%s,"namespace":%s,"uid":%s,"resourceVersion":"%d"`,
		quote(p.Name), quote(p.Namespace), quote(p.UID), p.RV)
	if len(p.Labels) > 0 {
		fmt.Fprintf(&b, `,"labels":%s`, quote(p.Labels))
	}
	if p.Pad > 0 {
		fmt.Fprintf(&b, `,"annotations":{"pad":"%s"}`, strings.Repeat("x", p.Pad))
	}
	b.WriteString(`},"spec":{`)
	if p.Node != "" {
		fmt.Fprintf(&b, `"nodeName":%s`, quote(p.Node))
	}
	b.WriteString(`},"status":{`)
	if p.Phase != "" {
		fmt.Fprintf(&b, `"phase":%s`, quote(p.Phase))
	}
	b.WriteString(`}}`)
	return []byte(b.String())
}

// Object parses the pod.
func (p Pod) Object() *object.Object {
	o, err := Pods.ParseObject(p.JSON())
	if err != nil {
		panic(err)
	}
	return o
}

// Set returns the change that writes the pod.
func (p Pod) Set() Change { return Change{Object: p.Object()} }

// Delete returns the change that deletes the pod at its RV.
func (p Pod) Delete() Change { return Change{Deleted: true, Object: p.Object()} }

// Matches is apimachinery's own matching, on labels and fields in maps.
func (p Pod) Matches(namespace string, ls labels.Selector, fs fields.Selector) bool {
	set := fields.Set{"metadata.name": p.Name, "metadata.namespace": p.Namespace, "spec.nodeName": p.Node, "status.phase": p.Phase}
	return (namespace == "" || namespace == p.Namespace) &&
		(ls == nil || ls.Matches(labels.Set(p.Labels))) && (fs == nil || fs.Matches(set))
}

// Select compiles a filter.
func Select(tb testing.TB, r *object.Resource, namespace string, ls labels.Selector, fs fields.Selector) *object.Filter {
	tb.Helper()
	f, err := object.NewFilter(r, namespace, ls, fs)
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// Watch opens a cursor over a namespace (empty for all) until the end of the test.
func Watch(tb testing.TB, c *Cache, namespace string, from uint64) *Cursor {
	tb.Helper()
	cursor, err := c.Watch(Select(tb, Pods, namespace, nil, nil), from)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(cursor.Close)
	return cursor
}

// Apply applies changes at noon.
func Apply(tb testing.TB, c *Cache, changes ...Change) {
	tb.Helper()
	if err := c.Writer().Apply(changes, Noon); err != nil {
		tb.Fatal(err)
	}
}

// Signalled receives the signal, if there is one.
func (c *Cursor) Signalled() bool {
	select {
	case <-c.Ready():
		return true
	default:
		return false
	}
}

// WantSignal receives the signal, and fails if there is none.
func WantSignal(tb testing.TB, c *Cursor) {
	tb.Helper()
	if !c.Signalled() {
		tb.Fatal("no signal")
	}
}
