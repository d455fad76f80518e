package watchcache

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

func one[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func randomPod(r *rand.Rand) Pod {
	p := Pod{
		Namespace: one(r, "a", "a-b", "b"), Name: one(r, "web", "db"), UID: "u", RV: 1,
		Node: one(r, "", "n1", "n2"), Phase: one(r, "", "Running", "Failed"), Labels: map[string]string{},
	}
	for _, key := range []string{"app", "tier", "example.com/z", "A"} {
		if r.IntN(2) == 0 {
			p.Labels[key] = one(r, "", "web", "db", "1", "7", "20")
		}
	}
	return p
}

func randomLabels(t *testing.T, r *rand.Rand) labels.Selector {
	t.Helper()
	text := ""
	for range r.IntN(4) {
		key := one(r, "app", "tier", "example.com/z", "A")
		if text != "" {
			text += ","
		}
		text += one(r, key, "!"+key, key+"=web", key+"==1", key+"!=db", key+"=", key+" in (web,1)", key+" notin (web,7)", key+">5", key+"<8")
	}
	s, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return one(r, s, s, s, s, s, s, s, s, nil, labels.Everything(), labels.Nothing())
}

func randomFields(t *testing.T, r *rand.Rand) fields.Selector {
	t.Helper()
	text := ""
	for range r.IntN(4) {
		if text != "" {
			text += ","
		}
		text += one(r, "metadata.name", "metadata.namespace", "spec.nodeName", "status.phase") +
			one(r, "=", "==", "!=") + one(r, "", "web", "a", "b", "n1", "Running")
	}
	s, err := fields.ParseSelector(text)
	if err != nil {
		t.Fatal(err)
	}
	return one(r, s, s, s, s, s, s, s, s, nil, fields.Everything(), fields.Nothing())
}

// reference is apimachinery's own matching, on maps.
func reference(p Pod, namespace string, ls labels.Selector, fs fields.Selector) bool {
	set := fields.Set{"metadata.name": p.Name, "metadata.namespace": p.Namespace, "spec.nodeName": p.Node, "status.phase": p.Phase}
	return (namespace == "" || namespace == p.Namespace) &&
		(ls == nil || ls.Matches(labels.Set(p.Labels))) && (fs == nil || fs.Matches(set))
}

func TestFilterMatches(t *testing.T) {
	r := Random(t)
	matched := 0
	for range 20000 {
		p, namespace, ls, fs := randomPod(r), one(r, "", "", "a", "b"), randomLabels(t, r), randomFields(t, r)
		o := p.Object()
		f, err := NewFilter(Pods, namespace, ls, fs)
		if err != nil {
			t.Fatal(err)
		}
		want := reference(p, namespace, ls, fs)
		if f.Matches(o) != want {
			t.Fatalf("namespace %q, labels %v, fields %v on %s: %t, want %t", namespace, ls, fs, p.JSON(), !want, want)
		}
		if selective := ls != nil && !ls.Empty() || fs != nil && !fs.Empty(); f.Selective() != selective {
			t.Fatalf("labels %v, fields %v: Selective is %t", ls, fs, !selective)
		}
		from, to := f.KeyRange(Pods)
		if inside := from <= o.Key() && (to == "" || o.Key() < to); want && !inside {
			t.Fatalf("namespace %q, fields %v match %s outside of [%q, %q)", namespace, fs, o.Key(), from, to)
		}
		if want {
			matched++
		}
	}
	if matched < 1000 {
		t.Errorf("only %d matches: test does not test", matched)
	}
}

func TestFilterFields(t *testing.T) {
	for text, ok := range map[string]bool{
		"metadata.name=x": true, "metadata.namespace!=x": true, "spec.nodeName=x": true, "status.phase=x,spec.nodeName!=y": true,
		"spec.hostNetwork=true": false, "metadata.uid=x": false, "status.phase=x,spec.host=y": false, "spec=x": false,
	} {
		_, err := NewFilter(Pods, "", nil, fields.ParseSelectorOrDie(text))
		var unsupported *UnsupportedFieldError
		if (err == nil) != ok || !ok && !errors.As(err, &unsupported) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := NewFilter(Nodes, "", nil, fields.ParseSelectorOrDie("metadata.namespace=x")); err == nil {
		t.Error("nodes have no namespace to select by")
	}
	f, err := NewFilter(Nodes, "", nil, fields.ParseSelectorOrDie("metadata.name=n1"))
	if err != nil {
		t.Fatal(err)
	}
	if from, to := f.KeyRange(Nodes); from != "n1" || to != "n1\x00" {
		t.Errorf("one node is [%q, %q)", from, to)
	}
}

func TestLabelSet(t *testing.T) {
	r := Random(t)
	for range 2000 {
		p := randomPod(r)
		set, want := p.Object().Labels(), labels.Set(p.Labels)
		for _, key := range []string{"app", "tier", "example.com/z", "A", "", "no"} {
			value, ok := set.Lookup(key)
			wantValue, wantOK := want.Lookup(key)
			if value != wantValue || ok != wantOK || set.Has(key) != wantOK || set.Get(key) != wantValue {
				t.Fatalf("%q of %v is %q, %t", key, set, value, ok)
			}
		}
	}
}

// An event marks the cursors that it could match: always those that it
// concerns, and none with another narrowest requirement.
func TestInterests(t *testing.T) {
	r := Random(t)
	type watcher struct {
		cursor    *Cursor
		namespace string
		ls        labels.Selector
		fs        fields.Selector
	}
	c := New(*Pods, Roomy)
	c.Reset(nil, 1)
	var watchers []watcher
	state := map[string]Pod{}
	for rv := uint64(2); rv < 3000; rv++ {
		if len(watchers) < 60 || r.IntN(10) == 0 {
			w := watcher{namespace: one(r, "", "a", "b", "c"), ls: randomLabels(t, r), fs: randomFields(t, r)}
			f, err := NewFilter(Pods, w.namespace, w.ls, w.fs)
			if err != nil {
				t.Fatal(err)
			}
			if w.cursor, err = c.Watch(f, rv-1); err != nil {
				t.Fatal(err)
			}
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
		if err := c.Apply([]Change{change}, Noon); err != nil {
			t.Fatal(err)
		}
		for _, w := range watchers {
			matches := func(p Pod) bool { return reference(p, w.namespace, w.ls, w.fs) }
			concerned := had && matches(prev) || !change.Deleted && matches(p)
			woken := w.cursor.signalled()
			if concerned && !woken {
				t.Fatalf("%q %v %v was not woken by %s after %s", w.namespace, w.ls, w.fs, p.JSON(), prev.JSON())
			}
			if in := w.cursor.filter.interest; woken && !in.reaches(p) && (!had || !in.reaches(prev)) {
				t.Fatalf("%+v was woken by %s after %s", in, p.JSON(), prev.JSON())
			}
			deltas, _, err := w.cursor.Poll(nil, 10)
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
	if n := len(x.all.cursors) + len(x.namespaces) + len(x.keys) + len(x.values) + x.count; n != 0 {
		t.Errorf("index still holds %d entries", n)
	}
}

// reaches tells whether a pod satisfies the interest.
func (in interest) reaches(p Pod) bool {
	switch {
	case in.key != "":
		return in.key == p.Namespace+"/"+p.Name
	case in.value != "":
		return in.value == []string{p.Node, p.Phase}[in.field]
	}
	return in.namespace == "" || in.namespace == p.Namespace
}

func TestInterestNarrows(t *testing.T) {
	for _, test := range []struct {
		namespace, fields string
		want              interest
	}{
		{"", "", interest{}},
		{"a", "", interest{namespace: "a"}},
		{"a", "metadata.name=x", interest{namespace: "a", key: "a/x"}},
		{"", "metadata.name=x", interest{}},
		{"", "metadata.name=x,metadata.namespace=a", interest{namespace: "a", key: "a/x"}},
		{"", "metadata.namespace=a", interest{namespace: "a"}},
		{"", "metadata.namespace!=a", interest{}},
		{"a", "metadata.namespace=b", interest{namespace: "a"}},
		{"", "spec.nodeName=n1", interest{field: 0, value: "n1"}},
		{"", "spec.nodeName!=n1", interest{}},
		{"", "spec.nodeName=", interest{}},
		{"a", "status.phase=Running", interest{namespace: "a"}},
		{"", "status.phase=Running", interest{field: 1, value: "Running"}},
		{"a", "spec.nodeName=n1", interest{namespace: "a", value: "n1"}},
		{"", "status.phase=Running,spec.nodeName=n1", interest{value: "n1"}},
		{"", "spec.nodeName=n1,status.phase=Running", interest{value: "n1"}},
	} {
		t.Run(fmt.Sprint(test.namespace, " ", test.fields), func(t *testing.T) {
			f, err := NewFilter(Pods, test.namespace, nil, fields.ParseSelectorOrDie(test.fields))
			if err != nil {
				t.Fatal(err)
			}
			if f.interest != test.want {
				t.Errorf("interest is %+v, want %+v", f.interest, test.want)
			}
		})
	}
}

// A filter's cost is the work of a match: the values that labels and fields are
// compared with, and more for fields that must be looked up in the object.
func TestFilterCost(t *testing.T) {
	for _, c := range []struct {
		labels, fields string
		want           int
	}{
		{"", "", 0},
		{"app=web", "", 1},
		{"app=web,!old,tier in (a,b,c),n>5", "", 6},
		{"", "metadata.name=web,spec.nodeName!=n1", 2},
		{"app", "status.phase!=Failed", 2 + readCost},
		{"", "status.phase!=Failed,metadata.name!=a,status.phase!=Succeeded", 3 + readCost}, // read once
	} {
		ls, err := labels.Parse(c.labels)
		if err != nil {
			t.Fatal(err)
		}
		fs, err := fields.ParseSelector(c.fields)
		if err != nil {
			t.Fatal(err)
		}
		f, err := NewFilter(Pods, "", ls, fs)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Cost(); got != c.want {
			t.Errorf("%q %q costs %d, want %d", c.labels, c.fields, got, c.want)
		}
	}
}
