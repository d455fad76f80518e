package object

import (
	"slices"
	"unique"

	"github.com/tidwall/gjson"
)

// labelSet contains an object's labels. It implements apimachinery's labels.Labels. An object has
// few labels, so a slice is smaller and faster than a map. The values share the memory of the
// object's bytes.
//
// All objects share the keys, so the keys stay in the processor's caches. With keys in the objects'
// own bytes, a list by selector spent most of its time on fetching keys from memory.
type labelSet []label

type label struct {
	key   unique.Handle[string]
	value string
}

// readLabels reads the value of metadata.labels. It returns false if the value is not a map of
// strings.
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
	return slices.Clip(set), ok
}

// addEntry adds an entry of metadata.labels in protobuf.
func (s *labelSet) addEntry(entry []byte) error {
	key, value, err := readEntry(entry)
	*s = append(*s, label{unique.Make(key), value})
	return err
}

// Lookup returns the value of a label and whether the label is set. If a key occurs several times,
// the last value counts, as in any decoder.
func (s labelSet) Lookup(key string) (value string, ok bool) {
	for _, l := range slices.Backward(s) {
		if l.key.Value() == key {
			return l.value, true
		}
	}
	return "", false
}

// Has reports whether a label is set.
func (s labelSet) Has(key string) bool {
	_, ok := s.Lookup(key)
	return ok
}

// Get returns the value of a label, or "".
func (s labelSet) Get(key string) string {
	value, _ := s.Lookup(key)
	return value
}
