package shards

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// script creates, changes and deletes objects of one resource in its own namespaces. All have its
// name as a label. Objects are often created again under the name of a deleted one. Then they have
// another uid, so that the name moves to another shard.
type script struct {
	*world
	t          *testing.T
	ctx        context.Context //nolint:containedctx // a script lives as long as a test
	of         resource
	name       string
	namespaces []string
	random     *rand.Rand
	now        map[string]*unstructured.Unstructured // by number
	names      int                                   // of objects
	ever       map[types.UID]bool                    // that have existed
}

func (w *world) newScript(t *testing.T, of resource, random *rand.Rand) *script {
	t.Helper()
	s := &script{
		world: w, t: t, ctx: t.Context(), of: of,
		name: cluster.UniqueName("script-" + of.Resource), random: random,
		now: map[string]*unstructured.Unstructured{}, names: 12, ever: map[types.UID]bool{},
	}
	const namespaces = 3
	for i := range namespaces {
		s.namespaces = append(s.namespaces, w.on.server.NamespaceT(t, fmt.Sprintf("%s-%d", s.name, i)))
	}
	return s
}

// uids are those of the current objects.
func (s *script) uids() (all []string) {
	for _, o := range s.now {
		all = append(all, string(o.GetUID()))
	}
	return all
}

func (s *script) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// change changes one object.
func (s *script) change() {
	s.t.Helper()
	n := s.random.IntN(s.names)
	number := fmt.Sprint(n)
	color := colors[s.random.IntN(len(colors))]
	is := s.now[number]
	switch {
	case is == nil:
		s.create("object-"+number, s.namespaces[n%len(s.namespaces)], color)
		return
	case s.random.IntN(3) == 0:
		s.remove(number)
		return
	}
	labels := map[string]any{"color": color}
	if s.random.IntN(4) == 0 {
		labels["of"] = []any{"another", s.name}[s.random.IntN(2)]
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels, "annotations": map[string]any{"change": fmt.Sprint(s.random.Uint64())}}})
	s.must(err)
	_, err = s.dynamic.Resource(s.of.GroupVersionResource).Namespace(is.GetNamespace()).Patch(s.ctx, is.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	s.must(err)
}

// create creates an object, which is remembered by its name without "object-".
func (s *script) create(name, namespace, color string) *unstructured.Unstructured {
	s.t.Helper()
	number := name[len("object-"):]
	if s.of.clusterful {
		name = s.name + "-" + name
	}
	o, err := s.world.create(s.ctx, s.of, namespace, s.of.object(name, color, map[string]string{"of": s.name}))
	s.must(err)
	s.now[number], s.ever[o.GetUID()] = o, true
	return o
}

func (s *script) remove(number string) {
	s.t.Helper()
	is := s.now[number]
	s.must(s.dynamic.Resource(s.of.GroupVersionResource).Namespace(is.GetNamespace()).Delete(s.ctx, is.GetName(), *metav1.NewDeleteOptions(0)))
	delete(s.now, number)
}

// follows reports whether a watch follows a large part of the objects.
func (s *script) follows(h *watch) bool {
	if h.shard.byNamespace {
		return !s.of.clusterful && h.shard.has("", s.namespaces[0])
	}
	const one, few = 1 << 60, 16 // a sixteenth of all hashes
	found := 0
	for i := range few {
		if h.shard.hasHash(uint64(i)*one + one/2) { //nolint:gosec // small
			found++
		}
	}
	return found > 1
}

// end creates red objects in the first namespace until each watch has seen one, and sets the last
// resourceVersions of the watches.
func (s *script) end(watches []*watch) {
	s.t.Helper()
	for i, missing := 0, true; missing; i++ {
		o := s.create(fmt.Sprintf("object-last-%d", i), s.namespaces[0], "red")
		rv, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
		s.must(err)
		missing = false
		for _, h := range watches {
			if h.last == 0 && h.shard.has(string(o.GetUID()), o.GetNamespace()) {
				h.last = rv
			}
			missing = missing || h.last == 0
		}
	}
}
