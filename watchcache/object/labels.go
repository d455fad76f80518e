package object

import (
	"slices"
	"strings"
	"unique"

	"github.com/tidwall/gjson"
)

// labelSet implements apimachinery's labels.Labels. An object has few labels, so a slice is smaller
// and faster than a map. The values share the memory of the object's bytes. The API does not limit
// the number of labels: more than fewLabels are in order.
//
// All objects share the keys, so the keys stay in the processor's caches. With keys in the objects'
// own bytes, a list by selector spent most of its time on fetching keys from memory.
type labelSet []label

type label struct {
	Key   unique.Handle[string]
	Value string
}

const fewLabels = 16

// Order sorts many labels. Of equal keys, only the last remains.
func (s *labelSet) Order() {
	byKey := func(a, b label) int { return strings.Compare(a.Key.Value(), b.Key.Value()) }
	if len(*s) <= fewLabels {
		return
	}
	if !slices.IsSortedFunc(*s, byKey) { // upstream sorts them
		slices.SortStableFunc(*s, byKey)
	}
	kept := (*s)[:0]
	for i, l := range *s {
		if i+1 == len(*s) || (*s)[i+1].Key != l.Key {
			kept = append(kept, l)
		}
	}
	*s = kept
}

func readLabels(v gjson.Result) (set labelSet, ok bool) {
	if v.Type == gjson.Null {
		return nil, true
	}
	if !v.IsObject() {
		return nil, false
	}
	ok = true
	v.ForEach(func(k, v gjson.Result) bool {
		ok = v.Type == gjson.String
		set = append(set, label{unique.Make(k.Str), v.Str})
		return ok
	})
	set.Order()
	return slices.Clip(set), ok
}

// Add adds a label. Order must be called after the last one.
func (s *labelSet) Add(key, value string) { *s = append(*s, label{unique.Make(key), value}) }

// Lookup takes the last value if a key occurs several times, like any decoder.
func (s labelSet) Lookup(key string) (value string, ok bool) {
	if len(s) > fewLabels {
		byKey := func(l label, key string) int { return strings.Compare(l.Key.Value(), key) }
		at, ok := slices.BinarySearchFunc(s, key, byKey)
		if !ok {
			return "", false
		}
		return s[at].Value, true
	}
	for _, l := range slices.Backward(s) {
		if l.Key.Value() == key {
			return l.Value, true
		}
	}
	return "", false
}

func (s labelSet) Has(key string) bool {
	_, ok := s.Lookup(key)
	return ok
}

func (s labelSet) Get(key string) string {
	value, _ := s.Lookup(key)
	return value
}
