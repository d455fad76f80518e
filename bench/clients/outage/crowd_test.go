package outage

import (
	"fmt"
	"maps"
	"net/url"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

// crowd is a set of watches of configmaps with different selectors and starts. The first watch sees
// all objects.
type crowd []*clients.Watch

// crowded is the namespace that the crowd watches.
const crowded = "crowded"

const crowdSize = 120

// newCrowd opens the watches of a namespace that contains one object, the witness, which never
// changes.
func newCrowd(t *testing.T, w *clients.World) crowd {
	t.Helper()
	w.API.NamespaceT(t, crowded)
	w.CreateConfigMap(t, crowded, "witness", "colour", "red")
	proxy := w.Endpoints(t)[1]
	var c crowd
	cluster.Eventually(t, "the cache has the witness", func() bool {
		return proxy.GetT(t, "/api/v1/namespaces/"+crowded+"/configmaps/witness?resourceVersion=0", nil).Status == 200
	})
	version := clients.ListVersion(t, proxy.GetT(t, "/api/v1/configmaps?resourceVersion=0", nil))
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
		c = append(c, clients.WatchAt(t, proxy, target))
	}
	return c
}

// stay fails the test if a watch has ended.
func (c crowd) stay(t *testing.T) {
	t.Helper()
	for _, o := range c {
		if err := o.Ended(); err != nil {
			t.Fatalf("a watch has ended: %v: %s", err, o.Name)
		}
	}
}

// check compares each watch's events with the writes and with upstream's present state.
func (c crowd) check(t *testing.T, w *clients.World, o *writer) {
	t.Helper()
	created, deleted := o.history()
	t.Logf("%d objects were created and %d deleted", len(created), len(deleted))
	for _, selector := range []string{"", "colour=red", "colour=green"} {
		list, err := w.Admin.CoreV1().ConfigMaps(crowded).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{}
		for _, object := range list.Items {
			want[object.Namespace+"/"+object.Name] = object.ResourceVersion
		}
		for _, seen := range c {
			if !strings.HasSuffix(selector, selectorOf(seen)) || (selector == "") != (selectorOf(seen) == "") {
				continue
			}
			fromN := !strings.Contains(seen.Name, "resourceVersion=0")
			if fromN { // this watch starts after the creation of the witness
				delete(want, crowded+"/witness")
			} else if selector != "colour=green" {
				want[crowded+"/witness"] = witnessVersion(t, c)
			}
			var state map[string]string
			cluster.Eventually(t, "the watch is where upstream is: "+seen.Name, func() bool {
				state, _ = replay(seen.Events())
				return maps.Equal(state, want)
			})
			_, wrong := replay(seen.Events())
			if selector == "" {
				wrong = append(wrong, once(seen.Events(), created, deleted)...)
			}
			for _, complaint := range wrong {
				t.Errorf("%s: %s", seen.Name, complaint)
			}
		}
	}
}

// selectorOf returns a watch's label selector.
func selectorOf(o *clients.Watch) string {
	target, err := url.Parse(o.Name)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return target.Query().Get("labelSelector")
}

func witnessVersion(t *testing.T, c crowd) string {
	t.Helper()
	for _, e := range c[0].Events() {
		if e.Key == crowded+"/witness" {
			return fmt.Sprint(e.RV)
		}
	}
	t.Fatal("the witness was not seen")
	return ""
}

// replay returns the final state of a watch. It also reports events out of order, objects that are
// added twice, and changes of objects that do not exist.
func replay(events []conformance.Event) (state map[string]string, wrong []string) {
	state = map[string]string{}
	var last uint64
	for _, e := range events {
		if e.RV < last || e.RV == last && e.Type != "BOOKMARK" && e.Type != "DELETED" { // a relist shows deletions at the last resourceVersion before it
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

// once reports creations and deletions that a watch has not seen exactly once.
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
