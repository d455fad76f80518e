package table

import (
	"reflect"
	"regexp"
	"time"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"
)

const (
	// datesMost is the maximum number of date columns that are followed: each is looked up alone.
	datesMost = 16
	// pathMost is the maximum length of a JSONPath that is parsed, in bytes.
	pathMost = 256
)

const created = "metadata.creationTimestamp"

// simple matches each JSONPath that gjson reads in the same way.
var simple = regexp.MustCompile(`^(\.[A-Za-z_][A-Za-z0-9_-]*)+$`)

// addDate adds a custom resource's column of dates. If a custom resource defines no columns, its
// rows show its age.
func (r *Rules) addDate(c column, paths []string, index int) {
	switch i := index - 1; {
	case len(paths) == 0 && index == 1:
		c.since = path(created)
	case i < 0 || i >= len(paths):
		c.since = func([]byte) []time.Time { return nil }
	case simple.MatchString(paths[i]):
		c.since = path(paths[i][1:])
	default:
		c.since = evaluated(paths[i])
		r.Decodes++
	}
	r.dates++
	r.left = r.left || c.since == nil || r.dates > datesMost
	r.columns = append(r.columns, c)
}

// path returns a function that returns the first timestamp found at one of several paths.
func path(paths ...string) func([]byte) []time.Time {
	return func(object []byte) []time.Time {
		for _, p := range paths {
			if t, ok := timestamp(gjson.GetBytes(object, p).Str); ok {
				return []time.Time{t}
			}
		}
		return nil
	}
}

func timestamp(text string) (t time.Time, ok bool) {
	t, err := time.Parse(time.RFC3339, text)
	return t, err == nil && text != ""
}

// evaluated is path for a JSONPath. It uses upstream's libraries, which keep integers. It returns
// nil if the path is not linear.
func evaluated(text string) func([]byte) []time.Time {
	if len(text) > pathMost {
		return nil
	}
	tree, err := jsonpath.Parse("column", "{"+text+"}")
	if err != nil || !linear(tree.Root) {
		return nil
	}
	p := jsonpath.New("column").AllowMissingKeys(true) // many may use it: only ranges change it
	if p.Parse("{"+text+"}") != nil {
		return nil
	}
	return func(object []byte) []time.Time {
		var decoded any
		if json.Unmarshal(object, &decoded) != nil {
			return nil
		}
		results, err := p.FindResults(decoded)
		if err != nil || len(results) == 0 || len(results[0]) == 0 {
			return nil
		}
		found, _ := reflect.TypeAssert[string](results[0][0])
		if t, ok := timestamp(found); ok {
			return []time.Time{t}
		}
		return nil
	}
}

// linear reports whether the cost of a JSONPath is proportional to the size of the object. The path
// consists of fields, indexes, slices, and at most one filter. So no part of the object is visited
// twice. A user who defines resources may choose the path, and a small object with a recursive
// filter would need seconds and gigabytes.
func linear(root *jsonpath.ListNode) bool {
	if len(root.Nodes) != 1 {
		return false
	}
	action, ok := root.Nodes[0].(*jsonpath.ListNode)
	if !ok || len(action.Nodes) == 0 {
		return false
	}
	filters := 0
	for _, node := range action.Nodes {
		switch node := node.(type) {
		case *jsonpath.FieldNode, *jsonpath.ArrayNode:
		case *jsonpath.FilterNode:
			if filters++; filters > 1 || !compares(node) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// compares reports whether a filter compares a field of each element with a constant, or checks
// that the field exists.
func compares(f *jsonpath.FilterNode) bool {
	for _, node := range f.Left.Nodes {
		if _, ok := node.(*jsonpath.FieldNode); !ok {
			return false
		}
	}
	switch f.Operator {
	case "exists":
		return len(f.Left.Nodes) > 0
	case "==", "!=", "<", "<=", ">", ">=":
	default:
		return false
	}
	if len(f.Left.Nodes) == 0 || len(f.Right.Nodes) != 1 {
		return false
	}
	switch f.Right.Nodes[0].(type) {
	case *jsonpath.TextNode, *jsonpath.IntNode, *jsonpath.FloatNode, *jsonpath.BoolNode:
		return true
	}
	return false
}
