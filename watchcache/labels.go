package watchcache

import (
	"cmp"
	"slices"

	"github.com/tidwall/gjson"
)

// labelSet holds an object's labels as views into its bytes, sorted by key. It
// implements apimachinery's labels.Labels: for the handful of labels that an
// object has, a sorted slice is smaller and faster than a map.
type labelSet []label

type label struct{ key, value string }

// readLabels reads the value of metadata.labels. It returns false if that is
// not a map of strings.
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
		set = append(set, label{k.Str, v.Str})
		return ok
	})
	set.sort()
	return slices.Clip(set), ok
}

// addEntry adds an entry of metadata.labels in protobuf; sort follows.
func (s *labelSet) addEntry(entry []byte) error {
	key, value, err := readEntry(entry)
	*s = append(*s, label{key, value})
	return err
}

func (s labelSet) sort() {
	slices.SortFunc(s, func(a, b label) int { return cmp.Compare(a.key, b.key) })
}

// Lookup returns the value of a label and whether it is set.
func (s labelSet) Lookup(key string) (value string, ok bool) {
	i, ok := slices.BinarySearchFunc(s, key, func(l label, key string) int { return cmp.Compare(l.key, key) })
	if !ok {
		return "", false
	}
	return s[i].value, true
}

// Has tells whether a label is set.
func (s labelSet) Has(key string) bool {
	_, ok := s.Lookup(key)
	return ok
}

// Get returns the value of a label, "" if it is not set.
func (s labelSet) Get(key string) string {
	value, _ := s.Lookup(key)
	return value
}
