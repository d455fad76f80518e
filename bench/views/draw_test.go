package views

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// viewsEach is the number of drawn views of a resource. Half of them keep fields, half drop fields.
const viewsEach = 50

// shape merges the objects of a resource: all members and items that any of the objects has.
type shape struct {
	members map[string]*shape
	items   *shape
	scalar  bool
}

func (s *shape) add(t tree) {
	switch t := t.(type) {
	case *object:
		for _, m := range t.members {
			if s.members == nil {
				s.members = map[string]*shape{}
			}
			if s.members[m.key] == nil {
				s.members[m.key] = &shape{}
			}
			s.members[m.key].add(m.value)
		}
	case list:
		if s.items == nil && len(t) > 0 {
			s.items = &shape{}
		}
		for _, item := range t {
			s.items.add(item)
		}
	case nil:
	default:
		s.scalar = true
	}
}

// drawPath walks from an object to a random field. If open is true, the objects accept any field,
// and some paths lead below a scalar.
func (s *shape) drawPath(random *rand.Rand, open bool) (p path) {
	const stop = 5
	for len(p) == 0 || random.IntN(stop) > 0 {
		var steps []step
		for _, key := range slices.Sorted(maps.Keys(s.members)) {
			steps = append(steps, step{key: key})
		}
		if s.items != nil {
			steps = append(steps, step{items: true})
		}
		if len(steps) == 0 {
			if open && s.scalar && len(p) > 1 && p[0].key != "metadata" && random.IntN(4) == 0 {
				p = append(p, step{key: "below"})
			}
			break
		}
		next := steps[random.IntN(len(steps))]
		p = append(p, next)
		if next.items {
			s = s.items
		} else {
			s = s.members[next.key]
		}
	}
	return p
}

// drawViews draws the views of a resource from its objects.
func drawViews(r *resource, objects list, random *rand.Rand) (all []*view) {
	s := &shape{}
	for _, o := range objects {
		s.add(o)
	}
	for i := range viewsEach {
		v := &view{name: fmt.Sprintf("r%d-%d", r.number, i), of: r, drops: i%2 == 1}
		most, tries := 1+random.IntN(6), 100 //nolint:mnd // some resources have few fields
		for ; len(v.paths) < most && (tries > 0 || len(v.paths) == 0); tries-- {
			p := s.drawPath(random, r.open)
			v.add(p)
			if len(p) > 1 && random.IntN(8) == 0 {
				v.add(p[:1+random.IntN(len(p)-1)]) // which includes it
			}
		}
		all = append(all, v)
	}
	return append(
		all,
		&view{name: fmt.Sprintf("r%d-labels", r.number), of: r, paths: []path{{{key: "metadata"}, {key: "labels"}}}},
		&view{name: fmt.Sprintf("r%d-quiet", r.number), of: r, drops: true, paths: []path{
			{{key: "metadata"}, {key: "managedFields"}}, {{key: "metadata"}, {key: "annotations"}}, {{key: "metadata"}, {key: "generation"}},
		}},
	)
}

// add adds a path if the configuration accepts it.
func (v *view) add(p path) {
	overlaps := func(q path) bool {
		n := min(len(p), len(q))
		return slices.Equal(p[:n], q[:n])
	}
	if !p.writable() || v.drops && slices.ContainsFunc(identity, overlaps) ||
		slices.ContainsFunc(v.paths, func(q path) bool { return slices.Equal(p, q) }) {
		return
	}
	v.paths = append(v.paths, p)
}

func (v *view) String() string {
	verb := "keeps"
	if v.drops {
		verb = "drops"
	}
	var texts []string
	for _, p := range v.paths {
		texts = append(texts, p.String())
	}
	return v.name + " of " + v.of.name() + ", which " + verb + " " + strings.Join(texts, " and ")
}
