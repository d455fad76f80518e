package watchcache

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

func randomPod(r *rand.Rand) Pod {
	p := Pod{
		Namespace: Pick(r, "a", "a-b", "b"), Name: Pick(r, "web", "db"), RV: 1,
		Node: Pick(r, "", "n1", "n2"), Phase: Pick(r, "", "Running", "Failed"), Labels: map[string]string{},
	}
	for _, key := range []string{"app", "tier", "example.com/z", "A"} {
		if r.IntN(2) == 0 {
			p.Labels[key] = Pick(r, "", "web", "db", "1", "7", "20")
		}
	}
	p.UID = "uid of " + p.Namespace + "/" + p.Name
	return p
}

func randomLabels(t *testing.T, r *rand.Rand) labels.Selector {
	t.Helper()
	text := ""
	for range r.IntN(4) {
		key := Pick(r, "app", "tier", "example.com/z", "A")
		if text != "" {
			text += ","
		}
		text += Pick(r, key, "!"+key, key+"=web", key+"==1", key+"!=db", key+"=", key+" in (web,1)", key+" notin (web,7)", key+">5", key+"<8")
	}
	s, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return Pick(r, s, s, s, s, s, s, s, s, nil, labels.Everything(), labels.Nothing())
}

func randomFields(t *testing.T, r *rand.Rand) fields.Selector {
	t.Helper()
	text := ""
	for range r.IntN(4) {
		if text != "" {
			text += ","
		}
		text += Pick(r, "metadata.name", "metadata.namespace", "spec.nodeName", "status.phase") +
			Pick(r, "=", "==", "!=") + Pick(r, "", "web", "a", "b", "n1", "Running")
	}
	s, err := fields.ParseSelector(text)
	if err != nil {
		t.Fatal(err)
	}
	return Pick(r, s, s, s, s, s, s, s, s, nil, fields.Everything(), fields.Nothing())
}

// An event marks every cursor that it concerns. It does not mark cursors whose narrowest
// requirement it cannot meet.
func TestInterests(t *testing.T) {
	r := Random(t)
	type watcher struct {
		cursor    *Cursor
		namespace string
		ls        labels.Selector
		fs        fields.Selector
	}
	c := New(*Pods, Roomy)
	c.Writer().Reset(nil, 1)
	var watchers []watcher
	state := map[string]Pod{}
	for rv := uint64(2); rv < 3000; rv++ {
		if len(watchers) < 60 || r.IntN(10) == 0 {
			w := watcher{namespace: Pick(r, "", "a", "b", "c"), ls: randomLabels(t, r), fs: randomFields(t, r)}
			f := Select(t, Pods, w.namespace, w.ls, w.fs)
			cursor, err := c.Watch(f, rv-1)
			if err != nil {
				t.Fatal(err)
			}
			w.cursor = cursor
			wantDeltas(t, w.cursor, 10)
			watchers = append(watchers, w)
		}
		if len(watchers) > 80 {
			i := r.IntN(len(watchers))
			watchers[i].cursor.Close()
			watchers = slices.Delete(watchers, i, i+1)
		}
		p := randomPod(r)
		p.RV = rv
		prev, had := state[p.Namespace+"/"+p.Name]
		change := p.Set()
		if state[p.Namespace+"/"+p.Name] = p; had && r.IntN(3) == 0 {
			p = prev
			p.RV = rv
			change = p.Delete()
			delete(state, p.Namespace+"/"+p.Name)
		}
		Apply(t, c, change)
		for _, w := range watchers {
			matches := func(p Pod) bool {
				return p.Matches(w.namespace, w.ls, w.fs)
			}
			concerned := had && matches(prev) || !change.Deleted && matches(p)
			woken := w.cursor.Signalled()
			if concerned && !woken {
				t.Fatalf("%q %v %v was not woken by %s after %s", w.namespace, w.ls, w.fs, p.JSON(), prev.JSON())
			}
			if in := w.cursor.filter.Interest(); woken && !meets(p, in) && (!had || !meets(prev, in)) {
				t.Fatalf("%+v was woken by %s after %s", in, p.JSON(), prev.JSON())
			}
			deltas, _, err := w.cursor.Poll(nil, 10, math.MaxInt)
			if err != nil || concerned != (len(deltas) == 1) {
				t.Fatalf("%q %v %v polled %d deltas of %s after %s: %v", w.namespace, w.ls, w.fs, len(deltas), p.JSON(), prev.JSON(), err)
			}
		}
	}
	seen := 0
	c.interests.each(func(*Cursor) { seen++ })
	if seen != len(watchers) || c.interests.len() != seen {
		t.Errorf("%d cursors are indexed, %d counted, %d open", seen, c.interests.len(), len(watchers))
	}
	for _, w := range watchers {
		w.cursor.Close()
	}
	x := &c.interests.mu
	if n := len(x.cursors) + len(x.fields) + x.count; n != 0 {
		t.Errorf("index still holds %d entries", n)
	}
}

// meets reports whether a pod satisfies an interest.
func meets(p Pod, in object.Interest) bool {
	return in == object.Interest{} || slices.Contains([]object.Interest{
		{By: object.ByNamespace, Value: p.Namespace},
		{By: object.ByName, Value: p.Namespace + "/" + p.Name},
		{By: 0, Value: p.Node},
		{By: 1, Value: p.Phase},
	}, in)
}
