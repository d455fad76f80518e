package read

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

// deployments are cached deployments of the namespaces a and b. Their metadata is watched.
type deployments struct {
	*stillFeeds
	t  *testing.T
	rd *Reader
}

const rollback = "deprecated.deployment.rollback.to"

func newDeployments(t *testing.T, annotations map[string]string) *deployments {
	t.Helper()
	fs, rd := newStill(t, schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, "Deployment", "[]")
	fs.fill(t, annotations)
	return &deployments{fs, t, rd}
}

// parse returns a deployment "namespace/name" at a resourceVersion. meta is more of its metadata.
func (d *deployments) parse(key string, rv int, meta string) *object.Object {
	d.t.Helper()
	namespace, name, _ := strings.Cut(key, "/")
	return objectOf(d.t, d.caches[object.JSON].Resource(), `{"metadata":{"name":%q,"namespace":%q,"uid":"u","resourceVersion":"%d"%s},"spec":{}}`, name, namespace, rv, meta)
}

func (d *deployments) apply(deleted bool, key string, rv int, meta string) {
	d.t.Helper()
	if err := d.caches[object.JSON].Apply([]watchcache.Change{{Deleted: deleted, Object: d.parse(key, rv, meta)}}, time.Now()); err != nil {
		d.t.Fatal(err)
	}
}

// The ends of watches of metadata.
const (
	forwarded = "form"       // upstream answers
	ends      = "unwritable" // the client watches again
	stays     = "timeout"
)

// watch returns how a watch ends.
func (d *deployments) watch(namespace, query string) string {
	d.t.Helper()
	collection := "/apis/apps/v1/deployments"
	if namespace != "" {
		collection = "/apis/apps/v1/namespaces/" + namespace + "/deployments"
	}
	v := d.ask(d.t, d.rd, collection+"?watch=1&timeoutSeconds=1&"+query, acceptPartial)
	if v.Answer == nil {
		return string(v.Reason)
	}
	var written strings.Builder
	v.Answer.Stream.Run(d.t.Context(), &exchange.ChunkWriter{To: &written, Unframed: true})
	if strings.Contains(written.String(), "rollback") {
		d.t.Errorf("%s%s: %s", namespace, query, written.String())
	}
	return v.Answer.Stream.Reason()
}

// step is a watch and how it ends.
type step struct{ namespace, query, want string }

func (d *deployments) steps(name string, steps ...step) {
	d.t.Helper()
	for i, s := range steps {
		if got := d.watch(s.namespace, s.query); got != s.want {
			d.t.Errorf("%s, %d: a watch of %q with %s ends by %q, want %q", name, i, s.namespace, s.query, got, s.want)
		}
	}
}

const (
	annotated = `,"annotations":{"` + rollback + `":"1"}`
	labelled  = `,"labels":{"app":"x"}`
)

// Upstream answers only the watches that would end at an unwritable object. Each such client
// watches again once.
func TestUnwritableObjectMovesItsWatchesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeployments(t, map[string]string{"a/x": "other", "b/y": rollback, "b/z": ""})
		d.steps("in the state",
			step{"a", "resourceVersion=0", stays},
			step{"b", "resourceVersion=0", ends},
			step{"b", "resourceVersion=0", forwarded},
			step{"b", "resourceVersion=10", forwarded}, // its deletion would show it
			step{"b", "", forwarded},
			step{"", "resourceVersion=0", forwarded},
			step{"", "resourceVersion=0&fieldSelector=metadata.namespace=b", forwarded},
			step{"", "resourceVersion=0&fieldSelector=metadata.namespace=a", stays},
			step{"a", "resourceVersion=0", stays},
			step{"a", "resourceVersion=10", stays},
			step{"b", "resourceVersion=0&fieldSelector=metadata.name=y", forwarded},
			step{"b", "resourceVersion=0&fieldSelector=metadata.name=z", stays},
			step{"", "resourceVersion=0&fieldSelector=metadata.name!=y", stays},
			step{"", "resourceVersion=0&labelSelector=app", stays},
			step{"b", "resourceVersion=0&labelSelector=!app", forwarded},
		)
		d.apply(false, "b/y", 11, "")
		d.steps("changed", step{"b", "resourceVersion=0", stays}, step{"b", "resourceVersion=10", stays}, step{"", "", stays})
		d.apply(false, "b/y", 12, annotated+labelled)
		d.steps("at an event",
			step{"b", "resourceVersion=11", ends},
			step{"b", "resourceVersion=11", forwarded},
			step{"b", "resourceVersion=10", forwarded},
			step{"b", "resourceVersion=12", forwarded},
			step{"b", "resourceVersion=11&labelSelector=app=other", stays},
			step{"a", "resourceVersion=11", stays},
		)
		d.apply(false, "b/y", 13, labelled)
		d.steps("changed again",
			step{"b", "resourceVersion=11", forwarded}, // the event is still ahead
			step{"b", "resourceVersion=12", stays},
			step{"b", "resourceVersion=0", stays},
		)
		d.apply(false, "b/y", 14, annotated+labelled)
		d.apply(false, "b/y", 15, "")
		d.steps("left the selection",
			step{"b", "resourceVersion=14&labelSelector=app=x", ends},
			step{"b", "resourceVersion=14&labelSelector=app=x", forwarded},
			step{"b", "resourceVersion=15&labelSelector=app=x", stays},
			step{"b", "resourceVersion=14", stays},
			step{"b", "resourceVersion=13", forwarded},
		)
		d.apply(false, "b/y", 16, annotated)
		d.apply(true, "b/y", 17, annotated)
		d.steps("deleted",
			step{"b", "resourceVersion=16", ends},
			step{"b", "resourceVersion=16", forwarded},
			step{"b", "resourceVersion=17", stays},
			step{"b", "resourceVersion=0", stays},
			step{"", "", stays},
		)
		fs := d.caches[object.JSON]
		fs.Reset([]*object.Object{d.parse("b/y", 20, annotated)}, 20)
		d.steps("in another epoch",
			step{"a", "resourceVersion=0", stays},
			step{"b", "resourceVersion=0", ends},
			step{"b", "resourceVersion=0", forwarded},
		)
	})
}

// A relist shows a removal at the resourceVersion before its gap, where the client's next watch
// begins.
func TestUnwritableRemovalInAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, kept := range []string{"", annotated, labelled} {
			d := newDeployments(t, map[string]string{"a/x": ""})
			d.apply(false, "b/y", 11, annotated+labelled)
			var all []*object.Object
			all = append(all, d.parse("a/x", 5, ""))
			if kept != "" {
				all = append(all, d.parse("b/y", 15, kept))
			}
			if err := d.caches[object.JSON].Replace(all, 20, time.Now()); err != nil {
				t.Fatal(err)
			}
			query := "resourceVersion=11&labelSelector=app=x"
			if kept == labelled { // it stays in the selection
				d.steps(kept, step{"b", query, stays}, step{"b", query, stays})
				continue
			}
			d.steps(kept, step{"b", query, ends}, step{"b", query, forwarded}, step{"a", query, stays}, step{"b", "resourceVersion=20&labelSelector=app=x", stays})
		}
	})
}

// Beyond a number of unwritable objects, all watches of their namespace are forwarded, and then all
// watches of the cache. This ends with the objects.
func TestUnwritableObjectsAreBounded(t *testing.T) {
	const inNamespace, inCache = 100, 1000
	synctest.Test(t, func(t *testing.T) {
		annotations := map[string]string{"a/x": "", "n-00/z": ""}
		name := func(i int) (namespace, name string) {
			return fmt.Sprintf("n-%02d", i/inNamespace), fmt.Sprintf("y-%03d", i%inNamespace)
		}
		for i := range inCache {
			namespace, name := name(i)
			annotations[namespace+"/"+name] = rollback
		}
		d := newDeployments(t, annotations)
		for i := range inCache {
			switch i {
			case inNamespace - 1:
				d.steps("before the namespace is full", step{"n-00", "resourceVersion=0&fieldSelector=metadata.name=z", stays})
			case inNamespace:
				d.steps("a full namespace", step{"n-00", "resourceVersion=0&fieldSelector=metadata.name=z", forwarded}, step{"a", "resourceVersion=0", stays})
			}
			namespace, name := name(i)
			query := "resourceVersion=0&fieldSelector=metadata.name=" + name
			d.steps("one object", step{namespace, query, ends}, step{namespace, query, forwarded})
		}
		d.steps("a full cache", step{"a", "resourceVersion=0", forwarded})
		d.apply(false, "n-09/y-000", 11, "")
		d.steps("one less", step{"a", "resourceVersion=0", stays}, step{"n-09", "resourceVersion=0&fieldSelector=metadata.name=y-000", stays})
		d.apply(false, "n-00/y-000", 12, "")
		d.steps("one less in the namespace", step{"n-00", "resourceVersion=0&fieldSelector=metadata.name=z", stays})
		d.caches[object.JSON].Reset([]*object.Object{d.parse("a/x", 5, "")}, 20)
		d.steps("none", step{"", "resourceVersion=0", stays}, step{"n-00", "resourceVersion=0", stays})
	})
}
