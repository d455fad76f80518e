package views

import (
	"regexp"
	"slices"
	"strings"
)

// step leads to a member of an object, or to all items of a list.
type step struct {
	key   string
	items bool
}

type path []step

// plainName matches keys that need no brackets.
var plainName = regexp.MustCompile(`^[^.\[\]"'\s*]+$`)

// String writes the path for the configuration.
func (p path) String() string {
	var b strings.Builder
	for i, s := range p {
		switch {
		case s.items:
			b.WriteString("[*]")
		case i == 0:
			b.WriteString(s.key)
		case plainName.MatchString(s.key):
			b.WriteString("." + s.key)
		case strings.Contains(s.key, `"`):
			b.WriteString("['" + s.key + "']")
		default:
			b.WriteString(`["` + s.key + `"]`)
		}
	}
	return b.String()
}

// writable reports whether the configuration can name a path.
func (p path) writable() bool {
	return plainName.MatchString(p[0].key) && !slices.ContainsFunc(p, func(s step) bool {
		return strings.Contains(s.key, `"`) && strings.Contains(s.key, "'")
	})
}

// identity has the fields that each view keeps.
var identity = []path{
	{{key: "apiVersion"}},
	{{key: "kind"}},
	{{key: "metadata"}, {key: "name"}},
	{{key: "metadata"}, {key: "namespace"}},
	{{key: "metadata"}, {key: "uid"}},
	{{key: "metadata"}, {key: "resourceVersion"}},
}

// view keeps or drops the fields at some paths of one resource's objects.
type view struct {
	name  string
	of    *resource
	drops bool
	paths []path
}

// cut returns an object's fields that stay.
func (v *view) cut(t tree) tree {
	if v.drops {
		t, _ = drop(t, v.paths)
		return t
	}
	t, _ = keep(t, slices.Concat(v.paths, identity))
	return t
}

// keep returns what stays of a value, and whether the value stays. The paths lead on from the
// value: an empty path names the value itself.
func keep(t tree, paths []path) (tree, bool) {
	if named(paths) {
		return t, true
	}
	switch t := t.(type) {
	case *object:
		kept := &object{}
		for _, m := range t.members {
			if rest := through(paths, step{key: m.key}); len(rest) > 0 {
				if value, stays := keep(m.value, rest); stays {
					kept.members = append(kept.members, member{m.key, value})
				}
			}
		}
		return kept, slices.ContainsFunc(paths, func(p path) bool { return !p[0].items })
	case list:
		kept, rest := list{}, through(paths, step{items: true})
		for _, item := range t {
			if item, stays := keep(item, rest); stays {
				kept = append(kept, item)
			}
		}
		return kept, len(rest) > 0
	case nil:
		return nil, len(paths) > 0
	}
	return nil, false
}

// drop is keep for the paths of what does not stay.
func drop(t tree, paths []path) (tree, bool) {
	if named(paths) {
		return nil, false
	}
	switch t := t.(type) {
	case *object:
		kept := &object{}
		for _, m := range t.members {
			if value, stays := drop(m.value, through(paths, step{key: m.key})); stays {
				kept.members = append(kept.members, member{m.key, value})
			}
		}
		return kept, true
	case list:
		kept := list{}
		for _, item := range t {
			if item, stays := drop(item, through(paths, step{items: true})); stays {
				kept = append(kept, item)
			}
		}
		return kept, true
	}
	return t, true
}

// named reports whether a path ends.
func named(paths []path) bool {
	return slices.ContainsFunc(paths, func(p path) bool { return len(p) == 0 })
}

// through returns the rests of the paths that begin with a step.
func through(paths []path, s step) (rest []path) {
	for _, p := range paths {
		if len(p) > 0 && p[0] == s {
			rest = append(rest, p[1:])
		}
	}
	return rest
}

// cutItems cuts the objects of a list.
func (v *view) cutItems(t tree) tree {
	o := t.(*object)
	items, ok := o.get("items").(list)
	if !ok {
		return t // null
	}
	cut := list{}
	for _, item := range items {
		cut = append(cut, v.cut(item))
	}
	return o.with("items", cut)
}

// cutRows cuts the objects of a Table.
func (v *view) cutRows(t tree) tree {
	o := t.(*object)
	rows, ok := o.get("rows").(list)
	if !ok {
		return t
	}
	cut := list{}
	for _, row := range rows {
		row := row.(*object)
		cut = append(cut, row.with("object", v.cut(row.get("object"))))
	}
	return o.with("rows", cut)
}
