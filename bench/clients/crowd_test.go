package clients

import (
	"bytes"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/conformance"
)

// crowd are watches on configmaps, of different selections and beginnings. The first sees all.
type crowd []*watch

// crowded is the namespace that the crowd watches.
const crowded = "crowded"

const crowdSize = 120

// newCrowd opens the watches on a namespace with one object, the witness, which stays as it is.
func newCrowd(t *testing.T, w *world) crowd {
	t.Helper()
	w.namespaceNamed(t, crowded)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "witness", Labels: map[string]string{"colour": "red"}}}
	if _, err := w.admin.CoreV1().ConfigMaps(crowded).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	proxy := w.endpoints(t)[1]
	var c crowd
	eventually(t, "the cache has the witness", func() bool {
		return proxy.get(t, "/api/v1/namespaces/"+crowded+"/configmaps/witness?resourceVersion=0", nil).status == 200
	})
	version := listVersion(t, proxy.get(t, "/api/v1/configmaps?resourceVersion=0", nil))
	for i := range crowdSize {
		target := "/api/v1/namespaces/" + crowded + "/configmaps?watch=1"
		if i%3 == 2 {
			target = "/api/v1/configmaps?watch=1&fieldSelector=" + url.QueryEscape("metadata.namespace="+crowded)
		}
		switch i % 4 {
		case 2:
			target += "&labelSelector=" + url.QueryEscape("colour=red")
		case 3:
			target += "&labelSelector=" + url.QueryEscape("colour=green")
		}
		switch i / 4 % 3 {
		case 0:
			target += "&resourceVersion=0"
		case 1:
			target += "&resourceVersion=" + version
		case 2:
			target += "&resourceVersion=0&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
		}
		c = append(c, proxy.watchAt(t, target))
	}
	return c
}

// stay fails if a watch has ended.
func (c crowd) stay(t *testing.T) {
	t.Helper()
	for _, o := range c {
		if err := o.ended(); err != nil && !toldExpired(o) {
			t.Fatalf("a watch has ended: %v: %s", err, o.name)
		}
	}
}

// toldExpired tells whether a watch by labels has ended with 410, as it may after a relist: its
// objects may have left the selection and come back (watchcache.Cache.Replace).
func toldExpired(o *watch) bool {
	events := o.events()
	if selectorOf(o) == "" || len(events) == 0 {
		return false
	}
	last := events[len(events)-1]
	return last.Type == "ERROR" && bytes.Contains(last.Line, []byte(`"code":410`))
}

// check compares what each watch has seen with what was written and with what is there now.
func (c crowd) check(t *testing.T, w *world, o *writer) {
	t.Helper()
	created, deleted := o.history()
	t.Logf("%d objects were created and %d deleted", len(created), len(deleted))
	for _, selector := range []string{"", "colour=red", "colour=green"} {
		list, err := w.admin.CoreV1().ConfigMaps(crowded).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{}
		for _, object := range list.Items {
			want[object.Namespace+"/"+object.Name] = object.ResourceVersion
		}
		for _, seen := range c {
			if !strings.HasSuffix(selector, selectorOf(seen)) || (selector == "") != (selectorOf(seen) == "") || toldExpired(seen) {
				continue
			}
			fromN := !strings.Contains(seen.name, "resourceVersion=0")
			if fromN { // begins after the witness
				delete(want, crowded+"/witness")
			} else if selector != "colour=green" {
				want[crowded+"/witness"] = witnessVersion(t, c)
			}
			var state map[string]string
			eventually(t, "the watch is where upstream is: "+seen.name, func() bool {
				state, _ = replay(seen.events())
				return maps.Equal(state, want)
			})
			_, wrong := replay(seen.events())
			if selector == "" {
				wrong = append(wrong, once(seen.events(), created, deleted)...)
			}
			for _, complaint := range wrong {
				t.Errorf("%s: %s", seen.name, complaint)
			}
		}
	}
}

// selectorOf returns a watch's label selector.
func selectorOf(o *watch) string {
	target, err := url.Parse(o.name)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return target.Query().Get("labelSelector")
}

func witnessVersion(t *testing.T, c crowd) string {
	t.Helper()
	for _, e := range c[0].events() {
		if e.Key == crowded+"/witness" {
			return fmt.Sprint(e.RV)
		}
	}
	t.Fatal("the witness was not seen")
	return ""
}

// replay builds the state that a watch leads to, and tells what no watch may show: events out of order, objects that
// come twice or change without being there.
func replay(events []conformance.Event) (state map[string]string, wrong []string) {
	state = map[string]string{}
	var last uint64
	for _, e := range events {
		if e.RV < last || e.RV == last && e.Type != "BOOKMARK" && e.Type != "DELETED" { // a relist shows deletions at the last before it
			wrong = append(wrong, fmt.Sprintf("%v came after %d", e, last))
		}
		last = e.RV
		_, there := state[e.Key]
		switch e.Type {
		case "ADDED":
			if there {
				wrong = append(wrong, fmt.Sprintf("%v was there", e))
			}
			state[e.Key] = fmt.Sprint(e.RV)
		case "MODIFIED":
			if !there {
				wrong = append(wrong, fmt.Sprintf("%v was not there", e))
			}
			state[e.Key] = fmt.Sprint(e.RV)
		case "DELETED":
			if !there {
				wrong = append(wrong, fmt.Sprintf("%v was not there", e))
			}
			delete(state, e.Key)
		case "BOOKMARK":
		default:
			wrong = append(wrong, fmt.Sprintf("%v", e))
		}
	}
	return state, wrong
}

// once tells what was not seen exactly once of what was created and deleted.
func once(events []conformance.Event, created, deleted map[string]bool) (wrong []string) {
	added, gone := map[string]int{}, map[string]int{}
	for _, e := range events {
		switch e.Type {
		case "ADDED":
			added[e.Key]++
		case "DELETED":
			gone[e.Key]++
		}
	}
	delete(added, crowded+"/witness")
	for what, pair := range map[string]struct {
		seen map[string]int
		done map[string]bool
	}{"added": {added, created}, "deleted": {gone, deleted}} {
		for key := range pair.done {
			if n := pair.seen[key]; n != 1 {
				wrong = append(wrong, fmt.Sprintf("%s was %s %d times", key, what, n))
			}
		}
		for key := range pair.seen {
			if !pair.done[key] {
				wrong = append(wrong, fmt.Sprintf("%s was %s by nobody", key, what))
			}
		}
	}
	return wrong
}
