// Package tree keeps the objects of a resource in key order. A change copies only the path to it
// and leaves the old tree as it was, so keeping many states is cheap.
package tree

import (
	"iter"
	"slices"
	"sort"
	"sync/atomic"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

const (
	// PageMax is the maximum number of objects on a page. Encodings derived from objects are cached
	// per page. Larger pages compress better. With smaller pages, an update invalidates fewer
	// derived bytes. A selection of a page's objects has a bit for each of them ([object.Filter]).
	PageMax = 64
	fanout  = 32
)

// Tree is a persistent B+tree. Keys are compared bytewise, as in etcd. A snapshot is just a root.
//
// Why not a sorted slice? An update of one in 100,000 objects would copy 800 kB. Why not a map?
// Lists need order, and derived encodings need pages.
//
// Invariants:
//
//	T1 all leaves are at the same depth
//	T2 keys ascend strictly within and across leaves
//	T3 pages have 1 to PageMax objects, inner nodes 1 to fanout children
//	T4 count and bytes of a node are the sums over the objects beneath the node
//	T5 everything reachable from a published root is immutable
//	T6 a page inherits the slot of the page it replaces; the slots of a tree's pages are distinct
//
// The zero Tree is empty.
type Tree struct{ root *node }

// node is a leaf if children is nil.
type node struct {
	min      string // smallest key beneath the node
	count    int
	bytes    int64
	children []*node
	page     *Page
}

// Page is an immutable sequence of objects in key order. All snapshots share a page until one of
// its objects changes.
type Page struct {
	id, slot uint64
	objects  []*object.Object
	bytes    int64
}

var pageIDs atomic.Uint64

// ID is unique in the process. Bytes derived from the page can be cached under this key.
func (p *Page) ID() uint64 { return p.id }

// Slot identifies the page's place in its collection (T6). If a collection is filled again, even in
// another cache, the pages have the same slots at first.
func (p *Page) Slot() uint64 { return p.slot }

// Objects returns the page's objects in key order. The slice must not be modified.
func (p *Page) Objects() []*object.Object { return p.objects }

// Len returns the number of objects on the page.
func (p *Page) Len() int { return len(p.objects) }

// Span is the part of a page that lies in a range of keys: Objects() = page[Lo:Hi].
type Span struct {
	Page   *Page
	Lo, Hi int
}

// Objects returns the covered objects in key order. The slice must not be modified.
func (s Span) Objects() []*object.Object { return s.Page.objects[s.Lo:s.Hi] }

// Whole reports whether the span covers its whole page.
func (s Span) Whole() bool { return s.Lo == 0 && s.Hi == len(s.Page.objects) }

// Newest returns the largest resourceVersion of the span's objects.
func (s Span) Newest() (rv uint64) {
	for _, o := range s.Objects() {
		rv = max(rv, o.ResourceVersion())
	}
	return rv
}

// Bytes returns the total length of the covered objects as list items.
func (s Span) Bytes() int64 {
	if s.Whole() {
		return s.Page.bytes
	}
	var sum int64
	for _, o := range s.Objects() {
		sum += int64(len(o.Item()))
	}
	return sum
}

// Parts divides a span. A part has most bytes at most, or one object. A page's parts never vary.
func (s Span) Parts(most int64) iter.Seq[Span] {
	return func(yield func(Span) bool) {
		if s.Bytes() <= most {
			yield(s)
			return
		}
		part, bytes := Span{s.Page, s.Lo, s.Lo}, int64(0)
		for _, o := range s.Objects() {
			size := int64(len(o.Item()))
			if bytes += size; bytes > most && part.Hi > part.Lo {
				if !yield(part) {
					return
				}
				part.Lo, bytes = part.Hi, size
			}
			part.Hi++
		}
		yield(part)
	}
}

func newLeaf(objects []*object.Object) *node {
	p := &Page{id: pageIDs.Add(1), objects: objects}
	p.slot = p.id
	for _, o := range objects {
		p.bytes += int64(len(o.Item()))
	}
	return &node{
		min:   objects[0].Key(),
		count: len(objects),
		bytes: p.bytes,
		page:  p,
	}
}

func (p *Page) replacement(objects []*object.Object) *node {
	n := newLeaf(objects)
	n.page.slot = p.slot
	return n
}

func newInner(children []*node) *node {
	n := &node{min: children[0].min, children: children}
	for _, c := range children {
		n.count += c.count
		n.bytes += c.bytes
	}
	return n
}

// Build returns a tree of objects that are sorted by key without duplicates. Its pages have space,
// so that the first updates do not split them. Their slots count up from one that depends only on
// slot. Pages from later splits never get these slots.
func Build(objects []*object.Object, slot uint64) Tree {
	if len(objects) == 0 {
		return Tree{}
	}
	var level []*node
	for chunk := range slices.Chunk(objects, PageMax*3/4) {
		leaf := newLeaf(slices.Clone(chunk))
		leaf.page.slot = 1<<63 | slot + uint64(len(level))
		level = append(level, leaf)
	}
	for len(level) > 1 {
		var up []*node
		for chunk := range slices.Chunk(level, fanout*3/4) {
			up = append(up, newInner(slices.Clone(chunk)))
		}
		level = up
	}
	return Tree{level[0]}
}

// Len returns the number of objects.
func (t Tree) Len() int {
	if t.root == nil {
		return 0
	}
	return t.root.count
}

// Bytes returns the total length of the objects as list items.
func (t Tree) Bytes() int64 {
	if t.root == nil {
		return 0
	}
	return t.root.bytes
}

func (n *node) child(key string) int {
	i := sort.Search(len(n.children), func(i int) bool { return n.children[i].min > key })
	return max(i-1, 0)
}

// find returns the position of key in the page, or the position for inserting it.
func (p *Page) find(key string) (int, bool) {
	i := sort.Search(len(p.objects), func(i int) bool { return p.objects[i].Key() >= key })
	return i, i < len(p.objects) && p.objects[i].Key() == key
}

// Get returns the object with this key, or nil. O(log n).
func (t Tree) Get(key string) *object.Object {
	n := t.root
	if n == nil {
		return nil
	}
	for n.page == nil {
		n = n.children[n.child(key)]
	}
	if i, ok := n.page.find(key); ok {
		return n.page.objects[i]
	}
	return nil
}

// Count returns the number of objects with from ≤ key < to in O(log n). An empty to is no bound.
func (t Tree) Count(from, to string) int {
	below := t.Len()
	if to != "" {
		below = t.rank(to)
	}
	return max(below-t.rank(from), 0)
}

func (t Tree) rank(key string) int {
	n, before := t.root, 0
	if n == nil {
		return 0
	}
	for n.page == nil {
		at := n.child(key)
		for _, c := range n.children[:at] {
			before += c.count
		}
		n = n.children[at]
	}
	i, _ := n.page.find(key)
	return before + i
}

// Set returns a tree with o, and the object with the same key that o has replaced, or nil.
func (t Tree) Set(o *object.Object) (Tree, *object.Object) {
	if t.root == nil {
		return Tree{newLeaf([]*object.Object{o})}, nil
	}
	nodes, old := t.root.set(o)
	if len(nodes) == 1 {
		return Tree{nodes[0]}, old
	}
	return Tree{newInner(nodes)}, old
}

// set returns a node, or two nodes after a split.
func (n *node) set(o *object.Object) (nodes []*node, old *object.Object) {
	if n.page != nil {
		return n.page.set(o)
	}
	at := n.child(o.Key())
	replaced, old := n.children[at].set(o)
	children := slices.Concat(n.children[:at], replaced, n.children[at+1:])
	return split(children, fanout, newInner, newInner), old
}

func (p *Page) set(o *object.Object) (nodes []*node, old *object.Object) {
	i, found := p.find(o.Key())
	rest := p.objects[i:]
	if found {
		old, rest = rest[0], rest[1:]
	}
	objects := slices.Concat(p.objects[:i], []*object.Object{o}, rest)
	return split(objects, PageMax, p.replacement, newLeaf), old
}

// Delete returns a tree without key. It also returns the deleted object, or nil.
func (t Tree) Delete(key string) (Tree, *object.Object) {
	if t.root == nil {
		return t, nil
	}
	root, old := t.root.delete(key)
	if old == nil {
		return t, nil
	}
	for root != nil && len(root.children) == 1 {
		root = root.children[0]
	}
	return Tree{root}, old
}

// delete returns the node without key, or nil if the node is then empty.
func (n *node) delete(key string) (*node, *object.Object) {
	if n.page != nil {
		i, found := n.page.find(key)
		if !found {
			return n, nil
		}
		objects := n.page.objects
		if n.count == 1 {
			return nil, objects[i]
		}
		return n.page.replacement(slices.Concat(objects[:i], objects[i+1:])), objects[i]
	}
	at := n.child(key)
	child, old := n.children[at].delete(key)
	before, with, after := n.children[:at], []*node{child}, n.children[at+1:]
	switch {
	case old == nil:
		return n, nil
	case child == nil && len(n.children) == 1:
		return nil, old
	case child == nil:
		with = nil
	case child.small() && at > 0: // so join it with a neighbour
		before, with = n.children[:at-1], join(n.children[at-1], child)
	case child.small() && len(after) > 0:
		with, after = join(child, after[0]), after[1:]
	}
	return newInner(slices.Concat(before, with, after)), old
}

func (n *node) small() bool {
	if n.page != nil {
		return n.count < PageMax/4
	}
	return len(n.children) < fanout/4
}

func join(a, b *node) []*node {
	if a.page != nil {
		objects := slices.Concat(a.page.objects, b.page.objects)
		return split(objects, PageMax, a.page.replacement, b.page.replacement)
	}
	return split(slices.Concat(a.children, b.children), fanout, newInner, newInner)
}

func split[E any](entries []E, limit int, first, second func([]E) *node) []*node {
	if len(entries) <= limit {
		return []*node{first(entries)}
	}
	half := len(entries) / 2
	return []*node{first(slices.Clip(entries[:half])), second(slices.Clone(entries[half:]))}
}

// Spans iterates over the parts of pages with from ≤ key < to, in key order; to may be empty.
func (t Tree) Spans(from, to string) iter.Seq[Span] {
	return func(yield func(Span) bool) {
		if t.root != nil {
			t.root.spans(from, to, yield)
		}
	}
}

// spans returns false if the iteration has ended.
func (n *node) spans(from, to string, yield func(Span) bool) bool {
	if n.page == nil {
		for _, c := range n.children[n.child(from):] {
			if to != "" && c.min >= to {
				return false
			}
			if !c.spans(from, to, yield) {
				return false
			}
		}
		return true
	}
	lo, _ := n.page.find(from)
	hi := len(n.page.objects)
	if to != "" {
		hi, _ = n.page.find(to)
	}
	if lo >= hi {
		return true
	}
	return yield(Span{n.page, lo, hi})
}

// Objects iterates over the objects of [Tree.Spans].
func (t Tree) Objects(from, to string) iter.Seq[*object.Object] {
	return func(yield func(*object.Object) bool) {
		for span := range t.Spans(from, to) {
			for _, o := range span.Objects() {
				if !yield(o) {
					return
				}
			}
		}
	}
}
