package tree

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

var nodes = &object.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, Kind: "Node", ListKind: "NodeList"}

// entry returns an object for tests. Trees use only its key and its size.
func entry(key string, size int) *object.Object {
	o, err := nodes.ParseObject(fmt.Appendf(nil, `{"metadata":{"name":%q,"resourceVersion":"1"},"pad":"%s"}`, key, strings.Repeat("x", size)))
	if err != nil {
		panic(err)
	}
	return o
}

// model is the expected content of a tree: objects sorted by key. It is changed in place.
type model []*object.Object

// numbered returns n objects, whose keys are 00000, 00001 and so on.
func numbered(n int) (m model) {
	for i := range n {
		m = append(m, entry(fmt.Sprintf("%05d", i), 1))
	}
	return m
}

func (m model) find(key string) (int, bool) {
	return slices.BinarySearchFunc(m, key, func(o *object.Object, key string) int { return cmp.Compare(o.Key(), key) })
}

func (m model) set(o *object.Object) (model, *object.Object) {
	i, found := m.find(o.Key())
	if found {
		old := m[i]
		m[i] = o
		return m, old
	}
	return slices.Insert(m, i, o), nil
}

func (m model) delete(key string) (model, *object.Object) {
	i, found := m.find(key)
	if !found {
		return m, nil
	}
	old := m[i]
	return slices.Delete(m, i, i+1), old
}

func (m model) between(from, to string) model {
	lo, _ := m.find(from)
	hi := len(m)
	if to != "" {
		hi, _ = m.find(to)
	}
	return m[lo:max(lo, hi)]
}

// checkTree checks T1 to T4, the second half of T6, and the contents against the model.
func checkTree(t *testing.T, tree Tree, want model) {
	t.Helper()
	var got model
	depth := -1
	slots := map[uint64]bool{}
	var walk func(n *node, level int) (count int, bytes int64)
	walk = func(n *node, level int) (count int, bytes int64) {
		if (n.page == nil) == (n.children == nil) {
			t.Fatal("node is neither leaf nor inner node")
		}
		if n.page != nil {
			if depth >= 0 && depth != level {
				t.Fatalf("T1: leaves at depths %d and %d", depth, level)
			}
			depth = level
			if slots[n.page.slot] {
				t.Fatalf("T6: two pages in slot %d", n.page.slot)
			}
			slots[n.page.slot] = true
			if l := n.page.Len(); l == 0 || l > PageMax {
				t.Fatalf("T3: page of %d objects", l)
			}
			got = append(got, n.page.objects...)
			for _, o := range n.page.objects {
				bytes += int64(len(o.Item()))
			}
			if n.page.bytes != bytes {
				t.Fatalf("T4: page of %d bytes says %d", bytes, n.page.bytes)
			}
			count = n.page.Len()
		} else {
			if l := len(n.children); l == 0 || l > fanout {
				t.Fatalf("T3: node of %d children", l)
			}
			for _, c := range n.children {
				ccount, cbytes := walk(c, level+1)
				count, bytes = count+ccount, bytes+cbytes
			}
		}
		if first := got[len(got)-count]; n.min != first.Key() {
			t.Fatalf("min is %q, first key %q", n.min, first.Key())
		}
		if n.count != count || n.bytes != bytes {
			t.Fatalf("T4: node says %d objects, %d bytes; has %d, %d", n.count, n.bytes, count, bytes)
		}
		return count, bytes
	}
	if tree.root != nil {
		walk(tree.root, 0)
	}
	for i := 1; i < len(got); i++ {
		if got[i-1].Key() >= got[i].Key() {
			t.Fatalf("T2: %q before %q", got[i-1].Key(), got[i].Key())
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("tree holds %d objects which are not the %d of the model", len(got), len(want))
	}
	if tree.Len() != len(want) {
		t.Fatalf("len is %d, want %d", tree.Len(), len(want))
	}
}

// checkRange compares rank and spans with the model.
func checkRange(t *testing.T, tree Tree, m model, from, to string) {
	t.Helper()
	want := m.between(from, to)
	var got model
	for span := range tree.Spans(from, to) {
		if span.Lo >= span.Hi {
			t.Fatalf("empty span in [%q, %q)", from, to)
		}
		if span.Whole() != (span.Hi-span.Lo == span.Page.Len()) {
			t.Fatalf("Whole is %t for [%d, %d) of %d", span.Whole(), span.Lo, span.Hi, span.Page.Len())
		}
		var bytes int64
		for _, o := range span.Objects() {
			bytes += int64(len(o.Item()))
		}
		if span.Bytes() != bytes {
			t.Fatalf("span of %d bytes says %d", bytes, span.Bytes())
		}
		got = append(got, span.Objects()...)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("[%q, %q): walked %d objects, want %d", from, to, len(got), len(want))
	}
	if n := tree.Count(from, to); n != len(want) {
		t.Fatalf("[%q, %q): counted %d, want %d", from, to, n, len(want))
	}
	// An iteration that stops early stays stopped.
	stop := len(want) / 2
	for range tree.Objects(from, to) {
		if stop--; stop < 0 {
			break
		}
	}
}

// keyOf returns keys whose bytewise order differs from the order of their parts.
func keyOf(n int) string {
	namespaces := []string{"a", "a-b", "a.b", "a0", "b", "ü"}
	return fmt.Sprintf("%s/%03x", namespaces[n%len(namespaces)], n)
}

func TestTree(t *testing.T) {
	r := random(t)
	for _, space := range []int{1, 40, 200, 3000, 30000} {
		t.Run(fmt.Sprintf("keys=%d", space), func(t *testing.T) { testTree(t, r, space) })
	}
}

func testTree(t *testing.T, r *rand.Rand, space int) {
	type version struct {
		tree  Tree
		model model
	}
	var (
		now      version
		old      []version
		lo, hi   = 0.2, 0.8 // the share of sets oscillates, so that the tree grows and shrinks
		setShare = hi
	)
	key := func() string { return keyOf(r.IntN(space)) }
	for step := range 6000 {
		if step%1000 == 0 {
			setShare = lo + hi - setShare
		}
		before := now
		var gotOld, wantOld *object.Object
		switch {
		case step%2000 == 0: // bulk build
			var m model
			density := r.Float64()
			for n := range space {
				if r.Float64() < density {
					m = append(m, entry(keyOf(n), r.IntN(100)))
				}
			}
			slices.SortFunc(m, func(a, b *object.Object) int { return cmp.Compare(a.Key(), b.Key()) })
			given := slices.Clone(m)
			now = version{Build(given, 0), m}
			clear(given) // the tree must not keep the caller's slice
		case r.Float64() < setShare:
			o := entry(key(), r.IntN(100))
			now.tree, gotOld = now.tree.Set(o)
			now.model, wantOld = now.model.set(o)
		case r.IntN(30) == 0: // a run of neighbours, as when a namespace is deleted
			from := r.IntN(len(now.model) + 1)
			for _, o := range slices.Clone(now.model[from:min(from+200, len(now.model))]) {
				now.tree, gotOld = now.tree.Delete(o.Key())
				now.model, wantOld = now.model.delete(o.Key())
				if gotOld != wantOld {
					t.Fatalf("delete(%q) returned another object", o.Key())
				}
			}
		default:
			k := key()
			now.tree, gotOld = now.tree.Delete(k)
			now.model, wantOld = now.model.delete(k)
			if wantOld == nil && now.tree != before.tree {
				t.Fatalf("deleting the absent %q made another tree", k)
			}
		}
		if gotOld != wantOld {
			t.Fatalf("step %d returned another object than the model", step)
		}
		if k := key(); r.IntN(4) == 0 {
			i, found := now.model.find(k)
			if got := now.tree.Get(k); found != (got != nil) || found && got != now.model[i] {
				t.Fatalf("get(%q) found %t, want %t", k, got != nil, found)
			}
			if rank := now.tree.rank(k); rank != i {
				t.Fatalf("rank(%q) is %d, want %d", k, rank, i)
			}
		}
		if len(now.model) < 300 || step%50 == 0 {
			checkTree(t, now.tree, now.model)
			checkRange(t, now.tree, now.model, key(), key())
			checkRange(t, now.tree, now.model, key(), "")
			checkRange(t, now.tree, now.model, "", key())
			checkRange(t, now.tree, now.model, "a/", "a0")
		}
		if step%150 == 0 {
			old = append(old, version{now.tree, slices.Clone(now.model)})
		}
	}
	gone := slices.Clone(now.model) // down to an empty tree
	r.Shuffle(len(gone), func(i, j int) { gone[i], gone[j] = gone[j], gone[i] })
	for i, o := range gone {
		now.tree, _ = now.tree.Delete(o.Key())
		if left := gone[i+1:]; len(left)%1000 == 0 || len(left) < 100 {
			m := slices.Clone(left)
			slices.SortFunc(m, func(a, b *object.Object) int { return cmp.Compare(a.Key(), b.Key()) })
			checkTree(t, now.tree, m)
		}
	}
	for _, v := range old { // T5
		checkTree(t, v.tree, v.model)
	}
}

// An update leaves all other pages unchanged, so the bytes derived from them stay valid.
func TestTreeSharesPages(t *testing.T) {
	m := numbered(5000)
	pages := func(tree Tree) map[*Page]uint64 {
		set := map[*Page]uint64{}
		for span := range tree.Spans("", "") {
			set[span.Page] = span.Page.Slot()
		}
		return set
	}
	before := Build(m, 0)
	after, _ := before.Set(entry("02500", 2))
	was, changed := pages(before), 0
	for p := range pages(after) {
		if was[p] == 0 {
			changed++
		}
	}
	if changed != 1 {
		t.Errorf("one update changed %d pages", changed)
	}
	if is := pages(after); !slices.Equal(slices.Sorted(maps.Values(was)), slices.Sorted(maps.Values(is))) {
		t.Error("T6: the replaced page had another slot")
	}
	if same, _ := after.Delete("no such key"); same != after {
		t.Error("deleting nothing made another tree")
	}
}

// While a tree shrinks, its pages stay well filled.
func TestTreeStaysDense(t *testing.T) {
	r := random(t)
	m := numbered(20000)
	tr := Build(m, 0)
	r.Shuffle(len(m), func(i, j int) { m[i], m[j] = m[j], m[i] })
	for _, o := range m[:19000] {
		tr, _ = tr.Delete(o.Key())
	}
	pages := 0
	for range tr.Spans("", "") {
		pages++
	}
	if limit := 1000 / (PageMax / 4); pages > limit {
		t.Errorf("1000 objects on %d pages, want at most %d", pages, limit)
	}
}

// Build can leave a node with a single child. Such a child has no neighbour to join.
func TestTreeLonelyChild(t *testing.T) {
	full := PageMax * 3 / 4 * (fanout * 3 / 4) // objects in a node of leaves that Build has filled
	for _, tail := range []int{1, 2, PageMax / 4, PageMax * 3 / 4} {
		m := numbered(full + tail)
		tr := Build(m, 0)
		checkTree(t, tr, m)
		for n := len(m) - 1; n >= full-1; n-- {
			tr, _ = tr.Delete(m[n].Key())
			checkTree(t, tr, m[:n])
		}
	}
}

// The parts of a span are its objects in order, and no longer than they may be.
func TestParts(t *testing.T) {
	r := random(t)
	for range 500 {
		var objects model
		for i := range 1 + r.IntN(PageMax) {
			objects = append(objects, entry(fmt.Sprintf("%05d", i), 1+r.IntN(4)*r.IntN(500)))
		}
		lo := r.IntN(len(objects))
		span := Span{Page: newLeaf(objects).page, Lo: lo, Hi: lo + 1 + r.IntN(len(objects)-lo)}
		most, at := 1+r.Int64N(2*span.Bytes()), span.Lo
		for part := range span.Parts(most) {
			if part.Page != span.Page || part.Lo != at || part.Hi <= at || part.Bytes() > most && part.Hi > at+1 {
				t.Fatalf("%d to %d with %d bytes of at most %d, after %d", part.Lo, part.Hi, part.Bytes(), most, at)
			}
			if next := part.Hi; next < span.Hi {
				if more := (Span{Page: span.Page, Lo: part.Lo, Hi: next + 1}); more.Bytes() <= most {
					t.Fatalf("%d to %d has room for more", part.Lo, part.Hi)
				}
			}
			at = part.Hi
		}
		if at != span.Hi {
			t.Fatalf("the parts end at %d of %d", at, span.Hi)
		}
	}
}
