package conformance

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// view is a view of one resource, and a plain implementation of what it shows. It keeps or drops the
// fields at some paths of the resource's objects.
type view struct {
	name    string
	version string // the apiVersion of the objects that have the paths
	drops   bool
	paths   []path
	foreign bool // the view is another resource's, and must change nothing
}

// path leads from an object to a field. The step items leads to all items of a list.
type path []string

const items = "\x00"

// views has the views that the present proxy has, by resource. The first one keeps only labels, the
// second one drops fields that change often. The others are drawn.
var views map[string][]*view

// drawnViews is the number of drawn views of a resource.
const drawnViews = 10

// resourceOf returns the resource of a plain path, as the configuration of views has it.
func resourceOf(target string) string {
	path, _, _ := strings.Cut(target, "?")
	parts := plainPath.FindStringSubmatch(path)
	switch {
	case parts == nil:
		return ""
	case strings.HasPrefix(path, "/api/"):
		return parts[1]
	}
	return parts[1] + "." + strings.Split(path, "/")[2]
}

// of returns the request in the view. Without a view, it is the request itself.
func (v *view) of(r request) request {
	if v != nil {
		r.Target = "/views/" + v.name + r.Target
	}
	return r
}

// direct returns the request whose response the view cuts. Messages are compared with cut JSON.
func (v *view) direct(r request) request {
	if v != nil && !v.foreign && strings.Contains(r.Header.Get("Accept"), protobuf) {
		r.Header = r.Header.Clone()
		r.Header.Set("Accept", strings.ReplaceAll(r.Header.Get("Accept"), protobuf, "application/json"))
	}
	return r
}

func (v *view) String() string {
	verb := map[bool]string{false: "keeps", true: "drops"}[v.drops]
	return fmt.Sprintf("in %s, which %s %q", v.name, verb, v.written())
}

// body cuts the objects in the body of a response.
func (v *view) body(body string) string {
	answer := gjson.Parse(body)
	kind, each := answer.Get("kind").Str, "items"
	switch {
	case kind == "Status":
		return body
	case kind == "Table" && strings.HasPrefix(answer.Get("apiVersion").Str, "meta.k8s.io/"):
		each = "rows"
	case !strings.HasSuffix(kind, "List"):
		return string(v.object(nil, answer))
	}
	one := func(dst []byte, step string, item gjson.Result) ([]byte, bool) {
		switch {
		case each == "items", step == "object":
			return v.object(dst, item), true
		case step == items:
			return members(dst, item, func(dst []byte, step string, member gjson.Result) ([]byte, bool) {
				if step == "object" {
					return v.object(dst, member), true
				}
				return append(dst, member.Raw...), true
			}), true
		}
		return append(dst, item.Raw...), true
	}
	return string(members(nil, answer, func(dst []byte, step string, member gjson.Result) ([]byte, bool) {
		if step == each && member.IsArray() {
			return members(dst, member, one), true
		}
		return append(dst, member.Raw...), true
	}))
}

// identity has the fields that each view keeps.
var identity = []path{
	{"apiVersion"}, {"kind"}, {"metadata", "name"}, {"metadata", "namespace"}, {"metadata", "uid"}, {"metadata", "resourceVersion"},
}

// object appends what stays of an object.
func (v *view) object(dst []byte, o gjson.Result) []byte {
	if v.drops {
		dst, _ = dropped(dst, o, v.paths)
		return dst
	}
	dst, _ = keeping(dst, o, slices.Concat(v.paths, identity))
	return dst
}

// keeping appends what stays of a value, and reports whether the value stays. The paths lead on from
// the value: an empty path names the value itself.
func keeping(dst []byte, value gjson.Result, paths []path) (kept []byte, stays bool) {
	next := func(dst []byte, step string, member gjson.Result) ([]byte, bool) {
		return keeping(dst, member, through(paths, step))
	}
	switch {
	case named(paths):
		return append(dst, value.Raw...), true
	case value.IsObject():
		return members(dst, value, next), slices.ContainsFunc(paths, func(p path) bool { return p[0] != items })
	case value.IsArray():
		return members(dst, value, next), len(through(paths, items)) > 0
	case value.Type == gjson.Null:
		return append(dst, value.Raw...), len(paths) > 0
	}
	return dst, false
}

// dropped is keeping for the paths of what does not stay.
func dropped(dst []byte, value gjson.Result, paths []path) (kept []byte, stays bool) {
	switch {
	case named(paths):
		return dst, false
	case value.IsObject() || value.IsArray():
		return members(dst, value, func(dst []byte, step string, member gjson.Result) ([]byte, bool) {
			return dropped(dst, member, through(paths, step))
		}), true
	}
	return append(dst, value.Raw...), true
}

// members appends an object or a list, with those members or items that stay.
func members(dst []byte, value gjson.Result, next func(dst []byte, step string, member gjson.Result) ([]byte, bool)) []byte {
	brackets := map[bool]string{true: "{}", false: "[]"}[value.IsObject()]
	dst = append(dst, brackets[0])
	first := len(dst)
	value.ForEach(func(key, member gjson.Result) bool {
		at, step := len(dst), items
		if at > first {
			dst = append(dst, ',')
		}
		if value.IsObject() {
			dst, step = append(append(dst, key.Raw...), ':'), key.Str
		}
		var stays bool
		if dst, stays = next(dst, step, member); !stays {
			dst = dst[:at]
		}
		return true
	})
	return append(dst, brackets[1])
}

// named reports whether a path ends.
func named(paths []path) bool {
	return slices.ContainsFunc(paths, func(p path) bool { return len(p) == 0 })
}

// through returns the rests of the paths that begin with a step.
func through(paths []path, step string) (rest []path) {
	for _, p := range paths {
		if len(p) > 0 && p[0] == step {
			rest = append(rest, p[1:])
		}
	}
	return rest
}

// configured returns the collection's resource, as the configuration of views has it.
func (c *collection) configured() string { return resourceOf(c.all()) }

// drawViews draws the views of a resource from its objects.
func (c *collection) drawViews(objects []gjson.Result) (all []*view) {
	name := fmt.Sprintf("r%d-", len(views))
	all = []*view{
		{name: name + "labels", paths: []path{{"metadata", "labels"}}},
		{name: name + "quiet", drops: true, paths: []path{{"metadata", "managedFields"}, {"metadata", "annotations"}, {"metadata", "generation"}}},
	}
	if c.kind == "Gauge" { // which has keys that JSON escapes
		all = append(all, &view{name: name + "keys", paths: []path{{"spec", "nested", `<a>"&`, "b"}, {"spec", "nested", "[*]"}}})
	}
	random := rand.New(rand.NewPCG(cluster.Seed(), uint64(cluster.Draw(1<<62, c.configured()))))
	for i := range drawnViews {
		v := &view{name: fmt.Sprint(name, i), version: c.apiVersion(), drops: i%2 == 1}
		most, tries := 1+random.IntN(6), 100 //nolint:mnd // some resources have few fields
		for ; len(v.paths) < most && (tries > 0 || len(v.paths) == 0); tries-- {
			p := c.drawPath(random, objects[random.IntN(len(objects))])
			v.add(p)
			if len(p) > 1 && random.IntN(8) == 0 {
				v.add(p[:1+random.IntN(len(p)-1)]) // which includes it
			}
		}
		all = append(all, v)
	}
	return all
}

// drawPath walks from an object to a random field. Gauges accept any field, so some of their paths
// lead below a scalar.
func (c *collection) drawPath(random *rand.Rand, value gjson.Result) (p path) {
	const stop = 5
	for len(p) == 0 || random.IntN(stop) > 0 {
		if !value.IsObject() && !value.IsArray() {
			if c.kind == "Gauge" && p[0] != "metadata" && random.IntN(4) == 0 {
				return append(p, "below")
			}
			break
		}
		var steps []string
		var values []gjson.Result
		isObject := value.IsObject()
		value.ForEach(func(key, member gjson.Result) bool {
			step := items
			if isObject {
				step = key.Str
			}
			steps, values = append(steps, step), append(values, member)
			return true
		})
		if len(steps) == 0 {
			break
		}
		i := random.IntN(len(steps))
		p, value = append(p, steps[i]), values[i]
	}
	return p
}

// plainName matches keys that need no brackets.
var plainName = regexp.MustCompile(`^[^.\[\]"'\s*\x00]+$`)

// add adds a path if the configuration accepts it.
func (v *view) add(p path) {
	overlaps := func(q path) bool {
		n := min(len(p), len(q))
		return slices.Equal(p[:n], q[:n])
	}
	unwritable := func(key string) bool { return strings.Contains(key, `"`) && strings.Contains(key, "'") }
	if !plainName.MatchString(p[0]) || slices.ContainsFunc(p, unwritable) || v.drops && slices.ContainsFunc(identity, overlaps) ||
		slices.ContainsFunc(v.paths, func(q path) bool { return slices.Equal(p, q) }) {
		return
	}
	v.paths = append(v.paths, slices.Clone(p))
}

// written returns the paths as the configuration has them.
func (v *view) written() (all []string) {
	for _, p := range v.paths {
		text := p[0]
		for _, key := range p[1:] {
			switch {
			case key == items:
				text += "[*]"
			case plainName.MatchString(key):
				text += "." + key
			case strings.Contains(key, `"`):
				text += "['" + key + "']"
			default:
				text += `["` + key + `"]`
			}
		}
		all = append(all, text)
	}
	return all
}

// settings returns a view of a resource as the configuration has it.
func (v *view) settings(resource string) any {
	verb := map[bool]string{false: "fields", true: "drop"}[v.drops]
	return map[string]any{"name": v.name, "resources": []string{resource}, verb: v.written()}
}
