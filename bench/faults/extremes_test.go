package faults

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

var (
	extremeKinds   = flag.Int("kinds", 5, "how many resources with one object TestExtremes makes")
	extremeObjects = flag.Int("objects", 2000, "how many objects of one resource it makes")
)

// extremes is a world with a table of results.
type extremes struct {
	*world
	rows []string
}

// Unusual sizes work: an object as large as etcd accepts, many almost empty resources, a resource
// with very many objects.
func TestExtremes(t *testing.T) {
	x := &extremes{world: newWorld(t, cluster.APIServerT(t, cluster.Options{}), gadgets)}
	t.Run("a large object", x.largeObject)
	t.Run("many resources", x.manyResources)
	t.Run("many objects", x.manyObjects)
	text := "| | |\n|---|---|\n" + strings.Join(x.rows, "")
	t.Log("\n" + text)
	report(t, text)
}

func (x *extremes) row(what, format string, args ...any) {
	x.rows = append(x.rows, "| "+what+" | "+fmt.Sprintf(format, args...)+" |\n")
}

// largeObject compares the bytes of watches, gets and lists with upstream's.
func (x *extremes) largeObject(t *testing.T) {
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
	x.row("one object", "%d bytes as JSON: get, list and three events equal upstream's", len(our))
}

// manyResources watches every resource.
func (x *extremes) manyResources(t *testing.T) {
	kinds := make([]resource, *extremeKinds)
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
	x.row("resources with one object", "%d, all cached, all changes seen", len(kinds))
}

// manyObjects reads all objects by list, by pages and by watch.
func (x *extremes) manyObjects(t *testing.T) {
	const namespace, parallel, page = "many", 32, 5000
	x.of = configMaps
	x.namespace(t, namespace)
	objects := x.objects(namespace)
	err := workload.Parallel(t.Context(), *extremeObjects, parallel, func(ctx context.Context, i int) error {
		_, err := objects.Create(ctx, x.of.object(fmt.Sprintf("o-%06d", i), colours[i%len(colours)], fmt.Sprint(i)), metav1.CreateOptions{})
		return err
	})
	cluster.MustT(t, err)
	through := x.straight(t)
	want := walk(t, x.direct(t), x.of.list(namespace), page)
	began := time.Now()
	bodyT(t, through, x.of.list(namespace)+"?limit=1")
	x.cached(t, x.of)
	synced := time.Since(began)

	all := x.of.list(namespace) + "?resourceVersion=0"
	list := bodyT(t, through, all)
	got := map[string]string{}
	note(got, list)
	if !maps.Equal(got, want) {
		t.Errorf("a list has %d objects, and not the same as upstream's %d", len(got), len(want))
	}
	if got := walk(t, through, x.of.list(namespace), page); !maps.Equal(got, want) {
		t.Errorf("pages have %d objects, and not the same as upstream's %d", len(got), len(want))
	}
	next := lines(t, through, x.of.watch(namespace, "", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0"))
	clear(got)
	for {
		event := next()
		meta := gjson.GetBytes(event, "object.metadata")
		if gjson.GetBytes(event, "type").Str == "BOOKMARK" {
			break
		}
		got[strings.Clone(meta.Get("name").Str)] = strings.Clone(meta.Get("resourceVersion").Str)
	}
	if !maps.Equal(got, want) {
		t.Errorf("a watch begins with %d objects, and not the same as upstream's %d", len(got), len(want))
	}
	const one = "o-000001"
	if _, err := objects.Patch(t.Context(), one, types.MergePatchType, []byte(`{"data":{"n":"none"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if event := next(); gjson.GetBytes(event, "object.metadata.name").Str != one || gjson.GetBytes(event, "object.data.n").Str != "none" {
		t.Errorf("the watch shows %.200q", event)
	}
	resident, peak := x.proxy.MemoryT(t)
	x.row("objects of one resource", "%d, %d MiB as JSON: list, pages and watch have the same objects as upstream", len(want), len(list)>>20)
	x.row("time until they were cached", "%.1f s", synced.Seconds())
	x.row("memory of the proxy", "%d MiB, peak %d MiB", resident>>20, peak>>20)
}

// cached waits until a resource is cached.
func (x *extremes) cached(t *testing.T, of resource) {
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

// walk pages through a list.
func walk(t *testing.T, s *cluster.Endpoint, path string, limit int) map[string]string {
	t.Helper()
	seen, token := map[string]string{}, ""
	for {
		page := bodyT(t, s, fmt.Sprintf("%s?limit=%d&continue=%s", path, limit, token))
		before := len(seen)
		if n := note(seen, page); len(seen) != before+n {
			t.Fatalf("a page has %d objects, %d of which came before", n, before+n-len(seen))
		}
		if token = gjson.GetBytes(page, "metadata.continue").Str; token == "" {
			return seen
		}
	}
}

// note adds the objects of a list to seen, which maps names to resourceVersions, and counts them.
func note(seen map[string]string, list []byte) (n int) {
	gjson.GetBytes(list, "items").ForEach(func(_, item gjson.Result) bool {
		n++
		seen[strings.Clone(item.Get("metadata.name").Str)] = strings.Clone(item.Get("metadata.resourceVersion").Str)
		return true
	})
	return n
}
