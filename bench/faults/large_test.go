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
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// An object as large as etcd accepts has the bytes of upstream in gets and events.
func TestLargeObject(t *testing.T) {
	w := newWorld(t, cluster.APIServerT(t, cluster.Options{}), gadgets)
	const size, namespace, name = 1_500_000, "large", "large"
	rv := w.namespace(t, namespace)
	through, direct := w.straight(t), w.direct(t)
	cluster.MustT(t, w.awaken(t.Context(), through, namespace))
	cluster.Eventually(t, w.of.Resource+" are cached", func() bool { return w.proxy.CachedT(t, w.of.Resource) })
	ours, theirs := lines(t, through, w.of.watch(namespace, "", fmt.Sprintf("resourceVersion=%d", rv))), lines(t, direct, w.of.watch(namespace, "", fmt.Sprintf("resourceVersion=%d", rv)))
	same := func(what string) {
		t.Helper()
		if our, their := ours(), theirs(); !bytes.Equal(our, their) || gjson.GetBytes(our, "type").Str != what {
			t.Fatalf("the event is %.200q, upstream's %.200q, want it %s", our, their, what)
		}
	}
	objects := w.objects(namespace)
	if _, err := objects.Create(t.Context(), w.of.object(name, colours[0], strings.Repeat("0123456789", size/10)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	same("ADDED")
	target := w.of.list(namespace) + "/" + name + "?resourceVersion=0"
	our, their := bodyT(t, through, target), bodyT(t, direct, target)
	if !bytes.Equal(our, their) || len(our) < size {
		t.Errorf("a get gives %d bytes, upstream %d", len(our), len(their))
	}
	list := bodyT(t, through, w.of.list(namespace)+"?resourceVersion=0")
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
