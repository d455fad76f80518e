package faults

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// extremes is a world for unusual sizes.
type extremes struct{ *world }

// Unusual sizes work: an object as large as etcd accepts, and many almost empty resources. Package
// scale has very many objects.
func TestExtremes(t *testing.T) {
	x := extremes{newWorld(t, cluster.APIServerT(t, cluster.Options{}), gadgets)}
	t.Run("a large object", x.largeObject)
	t.Run("many resources", x.manyResources)
}

// largeObject compares the bytes of watches, gets and lists with upstream's.
func (x extremes) largeObject(t *testing.T) {
	const size, namespace, name = 1_500_000, "large", "large"
	rv := x.namespace(t, namespace)
	through, direct := x.straight(t), x.direct(t)
	cluster.MustT(t, x.awaken(t.Context(), through, namespace))
	x.cached(t, x.of)
	ours, theirs := lines(t, through, x.of.watch(namespace, "", fmt.Sprintf("resourceVersion=%d", rv))), lines(t, direct, x.of.watch(namespace, "", fmt.Sprintf("resourceVersion=%d", rv)))
	same := func(what string) {
		t.Helper()
		if our, their := ours(), theirs(); !bytes.Equal(our, their) || gjson.GetBytes(our, "type").Str != what {
			t.Fatalf("the event is %.200q, upstream's %.200q, want it %s", our, their, what)
		}
	}
	objects := x.objects(namespace)
	if _, err := objects.Create(t.Context(), x.of.object(name, colours[0], strings.Repeat("0123456789", size/10)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	same("ADDED")
	target := x.of.list(namespace) + "/" + name + "?resourceVersion=0"
	our, their := bodyT(t, through, target), bodyT(t, direct, target)
	if !bytes.Equal(our, their) || len(our) < size {
		t.Errorf("a get gives %d bytes, upstream %d", len(our), len(their))
	}
	list := bodyT(t, through, x.of.list(namespace)+"?resourceVersion=0")
	if n := len(gjson.GetBytes(list, "items.0.spec.n").Str); n != size {
		t.Errorf("in a list the object has %d bytes, want %d", n, size)
	}
	if _, err := objects.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"colour":"none"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	same("MODIFIED")
	cluster.MustT(t, objects.Delete(t.Context(), name, metav1.DeleteOptions{}))
	same("DELETED")
}

// manyResources watches every resource.
func (x extremes) manyResources(t *testing.T) {
	kinds := make([]resource, 20)
	watches := make([]func() []byte, len(kinds))
	through := x.straight(t)
	event := func(i int, want string) {
		t.Helper()
		got := watches[i]()
		if kind, what := gjson.GetBytes(got, "object.kind").Str, gjson.GetBytes(got, "type").Str; kind != kinds[i].kind || what != want {
			t.Fatalf("a watch of %s shows %.200q, want it %s", kinds[i].Resource, got, want)
		}
	}
	for i := range kinds {
		kinds[i] = resource{
			schema.GroupVersionResource{Group: "faults.test", Version: "v1", Resource: fmt.Sprintf("kinds%d", i)},
			"/apis/faults.test/v1", fmt.Sprintf("Kind%d", i), "spec",
		}
		x.of = kinds[i]
		x.of.define(t.Context(), t, x.world)
		objects := x.objects("default")
		if _, err := objects.Create(t.Context(), x.of.object("one", colours[0], "1"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i, kind := range kinds {
		watches[i] = lines(t, through, kind.watch("default", "", "resourceVersion=0"))
		event(i, "ADDED")
	}
	for i, kind := range kinds {
		objects := x.dynamic.Resource(kind.GroupVersionResource).Namespace("default")
		if _, err := objects.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"spec":{"n":"2"}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		event(i, "MODIFIED")
		x.cached(t, kind)
	}
}

// cached waits until a resource is cached.
func (x extremes) cached(t *testing.T, of resource) {
	t.Helper()
	cluster.Within(t, 5*time.Minute, of.Resource+" are cached", func() bool { return x.proxy.CachedT(t, of.Resource) })
}

// lines opens a watch for the time of the test. next returns its next event.
func lines(t *testing.T, s *cluster.Endpoint, target string) (next func() []byte) {
	t.Helper()
	resp, err := s.Watch(t.Context(), cluster.Get(target))
	cluster.MustT(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	from := bufio.NewReader(resp.Body)
	const limit = time.Minute
	return func() []byte {
		t.Helper()
		for {
			late := time.AfterFunc(limit, func() { _ = resp.Body.Close() })
			line, err := from.ReadBytes('\n')
			late.Stop()
			if err != nil {
				t.Fatalf("%s: %v, after %d bytes of an event", target, err, len(line))
			}
			if gjson.GetBytes(line, "type").Str == "BOOKMARK" && !strings.Contains(target, "sendInitialEvents") {
				continue
			}
			return line
		}
	}
}
