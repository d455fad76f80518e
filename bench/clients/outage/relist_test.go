package outage

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

// If the connection to upstream breaks, the proxy resumes from the same resourceVersion. If the
// apiserver has also restarted, its history begins later. The proxy then reads the state again, and
// its watches see the difference as events.
func TestRelist(t *testing.T) {
	t.Parallel()
	w := clients.NewWorld(t)
	way := cluster.RelayT(t, w.API.Address)
	kubeconfig := w.API.KubeconfigT(t, "https://"+way.Address(), w.API.Token)
	p := cluster.ProxyT(t, cluster.ProxyOptions{Kubeconfig: kubeconfig, TLS: true})
	proxy := p.EndpointT(t)
	relists := func() float64 { return p.MetricsT(t).Sum("watchproxy_feed_relists_total", `resource="widgets"`) }

	w.DefineWidgets(t)
	ns := w.Namespace(t, "relist")
	objects := w.Dynamic.Resource(clients.Widgets).Namespace(ns)
	create := func(name string) {
		t.Helper()
		if _, err := objects.Create(t.Context(), clients.NewWidget(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		t.Helper()
		if err := objects.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	change := func(name, value string) {
		t.Helper()
		if _, err := objects.Patch(t.Context(), name, types.MergePatchType, clients.LabelPatch("n", value), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"changed", "kept", "removed", "replaced"} {
		create(name)
	}
	target := "/apis/clients.test/v1/namespaces/" + ns + "/widgets?watch=1&resourceVersion=0"
	var watches []*clients.Watch
	for range 20 {
		watches = append(watches, clients.WatchAt(t, proxy, target), clients.WatchAt(t, proxy, target+"&labelSelector=n"))
	}
	expect := func(when string, all, selected []string) {
		t.Helper()
		for i, o := range watches {
			want := [][]string{all, selected}[i%2]
			var got []string
			cluster.Eventually(t, when+": as many events as expected", func() bool { return len(o.Events()) >= len(want) })
			for _, e := range o.Events() {
				got = append(got, e.Type+" "+e.Key[len(ns)+1:])
			}
			if !slices.Equal(got, want) || o.Ended() != nil {
				t.Fatalf("%s: watch %s has seen\n%q instead of\n%q, %v", when, o.Name, got, want, o.Ended())
			}
		}
	}
	const state = 4 // number of objects in the watches' initial state
	all := []string{"ADDED changed", "ADDED kept", "ADDED removed", "ADDED replaced"}
	expect("at first", all, nil)

	way.Cut()
	change("kept", "1")
	way.Mend()
	all, selected := append(all, "MODIFIED kept"), []string{"ADDED kept"}
	expect("after a cut", all, selected)
	if n := relists(); n != 0 {
		t.Errorf("%v relists after a cut", n)
	}

	way.Cut()
	remove("removed")
	remove("replaced")
	change("changed", "1")
	change("changed", "2")
	create("new")
	create("replaced")
	create("unseen")
	remove("unseen")
	if err := w.API.Stop(); err != nil {
		t.Error(err)
	}
	if err := w.API.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	way.Mend()
	all = append(all, "DELETED replaced", "DELETED removed", "MODIFIED changed", "ADDED new", "ADDED replaced")
	expect("after a relist", all, append(selected, "ADDED changed"))
	if n := p.MetricsT(t).Sum("watchproxy_feed_relists_total", `resource="widgets"`, `reason="expired"`); n != 1 || relists() != 1 {
		t.Errorf("%v relists, %v of them as the history had expired", relists(), n)
	}
	for i, o := range watches {
		if err := ascending(o.Events()[[]int{state, 0}[i%2]:]); err != nil {
			t.Error(err)
		}
	}
	change("new", "1") // normal events follow
	for _, o := range watches {
		cluster.Eventually(t, "a change after that", func() bool { return o.Last().Key == ns+"/new" })
	}
}

// ascending checks that resourceVersions ascend. Only the deletions that a relist found share one,
// the last before the relist.
func ascending(events []conformance.Event) error {
	for i := 1; i < len(events); i++ {
		if events[i].RV < events[i-1].RV || events[i].RV == events[i-1].RV && events[i].Type != "DELETED" {
			return fmt.Errorf("%v came after %v", events[i], events[i-1])
		}
	}
	return nil
}
