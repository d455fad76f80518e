package projection

import (
	"encoding/json"
	"slices"
	"sync"
)

// Step is a part of a path: a key of an object, or all items of a list.
type Step struct {
	Key   string
	Items bool
}

// Path leads from an object to a field.
type Path []Step

// Identity has the fields that each projection keeps. Clients need them to tell objects apart.
var Identity = []Path{
	{{Key: "apiVersion"}},
	{{Key: "kind"}},
	{{Key: "metadata"}, {Key: "name"}},
	{{Key: "metadata"}, {Key: "namespace"}},
	{{Key: "metadata"}, {Key: "uid"}},
	{{Key: "metadata"}, {Key: "resourceVersion"}},
}

// Projection says which fields of an object stay. It never changes. The nil Projection keeps all.
type Projection struct {
	paths    *node
	object   *node // paths, as JSON writes their keys
	shapes   [shapes]*node
	messages sync.Map // *Message by reflect.Type
}

// Shape is the place of objects in an answer of upstream.
type Shape uint8

// The shapes.
const (
	Object Shape = iota // an object, or a Table with one row
	List                // a list, or a Table
	Events              // watch events

	shapes
)

// Keep returns a projection that keeps only the fields at the paths, and Identity.
func Keep(paths []Path) *Projection {
	root := &node{}
	for _, p := range slices.Concat(paths, Identity) {
		root.add(p, true)
	}
	return newProjection(root)
}

// Drop returns a projection that drops the fields at the paths. The paths must not lead to a field
// of Identity, nor to an object that has one.
func Drop(paths []Path) *Projection {
	root := &node{keep: true}
	for _, p := range paths {
		root.add(p, false)
	}
	return newProjection(root)
}

func newProjection(paths *node) *Projection {
	root := paths.written()
	p := &Projection{paths: paths, object: root}
	row := &node{keep: true, members: map[string]*node{"object": root}}
	table := &node{keep: true, members: map[string]*node{"rows": {keep: true, items: row}}}
	whole := &node{keep: true, members: map[string]*node{}}
	// A Table has its kind first. A custom resource may have this kind, too, after its apiVersion.
	typed, named := *root, *root
	tables := map[string]*node{`"meta.k8s.io/v1"`: table, `"meta.k8s.io/v1beta1"`: table}
	named.branch = branch{"apiVersion", tables}
	typed.branch = branch{"kind", map[string]*node{`"Table"`: &named}}
	events := &node{keep: true, members: map[string]*node{"object": &typed}}
	events.branch = branch{"type", map[string]*node{`"BOOKMARK"`: whole, `"ERROR"`: whole}}
	list := map[string]*node{
		"items": {keep: true, items: root},
		"rows":  table.members["rows"],
	}
	p.shapes = [shapes]*node{
		Object: &typed,
		List:   {keep: true, members: list},
		Events: events,
	}
	return p
}

// node says what stays of a value. A node without members and items is for the whole value.
type node struct {
	keep    bool // whether a value stays for which there is no further node
	members map[string]*node
	items   *node
	branch  branch
}

// branch has other nodes for the rest of an object, by the value of a member.
type branch struct {
	key string
	by  map[string]*node
}

// add adds a path. Shorter paths include longer ones.
func (n *node) add(p Path, keep bool) {
	if len(p) == 0 {
		*n = node{keep: keep}
		return
	}
	if n.members == nil && n.items == nil && n.keep == keep {
		return // a shorter path has been added
	}
	next := n.items
	if !p[0].Items {
		next = n.members[p[0].Key]
	}
	if next == nil {
		next = &node{keep: !keep}
		if p[0].Items {
			n.items = next
		} else {
			if n.members == nil {
				n.members = map[string]*node{}
			}
			n.members[p[0].Key] = next
		}
	}
	next.add(p[1:], keep)
}

// written returns a copy with the keys that JSON may have: kube-apiserver escapes some characters.
// Escapes that it does not write are not compared, because each key would cost more.
func (n *node) written() *node {
	if n == nil {
		return nil
	}
	all := &node{keep: n.keep, items: n.items.written()}
	if n.members != nil {
		all.members = map[string]*node{}
	}
	for key, of := range n.members {
		of = of.written()
		all.members[key] = of
		escaped, _ := json.Marshal(key) // strings can always be encoded
		all.members[string(escaped[1:len(escaped)-1])] = of
	}
	return all
}

// longKey is the length of keys, in bytes, from which a cutter is not used again.
const longKey = 4 << 10

var cutters = sync.Pool{New: func() any { return new(cutter) }}

// Append appends an object's fields that stay.
func (p *Projection) Append(dst, object []byte) ([]byte, error) {
	if p == nil {
		return append(dst, object...), nil
	}
	return appendCut(dst, object, p.object)
}

// AppendAnswer is Append for an answer of upstream.
func (p *Projection) AppendAnswer(dst, answer []byte, s Shape) ([]byte, error) {
	return appendCut(dst, answer, p.shapes[s])
}

func appendCut(dst, src []byte, root *node) ([]byte, error) {
	c := cutters.Get().(*cutter)
	c.reset(dst, root)
	err := c.write(src)
	if err == nil && len(c.stack) > 0 {
		err = errMalformed
	}
	dst = c.out
	c.reset(nil, nil)
	if cap(c.head) <= longKey {
		cutters.Put(c)
	}
	return dst, err
}
