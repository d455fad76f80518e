package object

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"github.com/tidwall/gjson"
)

// FuzzBookmark writes a bookmark as any JSON encoder may write it: with white space, with its keys
// in any order, and with escapes. However it is written, both templates have the same content.
func FuzzBookmark(f *testing.F) {
	for _, seed := range []string{
		`{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"208","creationTimestamp":null,"annotations":{"k8s.io/initial-events-end":"true"}},"spec":{"containers":null}}`,
		`{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"208"},"spec":{"metadata":{"annotations":{"a":"b"},"resourceVersion":"1"}}}`,
		`{"kind":"DaemonSet","metadata":{"resourceVersion":"1","annotations":{"deprecated.daemonset.template.generation":"0"}}}`,
		`{"apiVersion":"v1","metadata":{"annotations":{"a":"\"annotations\":{","k8s.io/initial-events-end":"true","z":""},"resourceVersion":"18446744073709551615"}}`,
		`{"metadata":{"annotations":{},"resourceVersion":"1"}}`,
		`{"metadata":{"annotations":null,"resourceVersion":"1"}}`,
		`{"metadata":{"name":"\"resourceVersion\":\"7\"","resourceVersion":"1","labels":{"resourceVersion":"7"}}}`,
	} {
		f.Add([]byte(seed), uint64(1))
	}
	f.Fuzz(func(t *testing.T, src []byte, style uint64) {
		if !decodersAgree(src) {
			t.Skip() // see there
		}
		for _, r := range []*Resource{pods, widgets} {
			b, rv, err := r.ParseBookmark(src)
			if err != nil {
				if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrOpaqueResourceVersion) {
					t.Fatalf("neither malformed nor opaque: %v", err)
				}
				continue
			}
			checkBookmark(t, b, src, rv)
			random := rand.New(rand.NewPCG(style, 0))
			for range 4 {
				again := reencode(random, gjson.ParseBytes(src))
				b, _, err := r.ParseBookmark(again)
				if err != nil {
					t.Fatalf("%s is a bookmark, and %s is not: %v", src, again, err)
				}
				checkBookmark(t, b, again, rv)
			}
		}
	})
}

// checkBookmark compares a bookmark's two forms with the bookmark that they were learnt from.
func checkBookmark(t *testing.T, b *Bookmark, src []byte, rv uint64) {
	t.Helper()
	for _, ends := range []bool{false, true} {
		got := b.Append(nil, 7, ends)
		if !decodersAgree(got) || pods.IsInitialEventsEnd(got) != ends {
			t.Fatalf("ends=%t, learnt from %s: %s", ends, src, got)
		}
		if g, w := content(t, got, "7"), content(t, src, strconv.FormatUint(rv, 10)); !reflect.DeepEqual(g, w) {
			t.Fatalf("learnt from %s: %s", src, got)
		}
	}
}

// content decodes a bookmark, without the annotation and without its resourceVersion, which has to
// be rv.
func content(t *testing.T, object []byte, rv string) (decoded map[string]any) {
	t.Helper()
	if err := json.Unmarshal(object, &decoded); err != nil {
		t.Fatalf("%v: %s", err, object)
	}
	meta := decoded["metadata"].(map[string]any)
	if meta["resourceVersion"] != rv {
		t.Fatalf("at %s instead of %s", meta["resourceVersion"], rv)
	}
	delete(meta, "resourceVersion")
	annotations, _ := meta["annotations"].(map[string]any)
	delete(annotations, initialEventsEndKey)
	if len(annotations) == 0 {
		delete(meta, "annotations")
	}
	return decoded
}

// reencode writes a value in JSON, as a random encoder does. Digits stay unescaped, because escaped
// resourceVersions are refused.
func reencode(random *rand.Rand, v gjson.Result) []byte {
	space := func() string { return []string{"", "", " ", "\n\t", "\r "}[random.IntN(5)] }
	text := func(s string) (quoted []byte) {
		quoted = append(quoted, '"')
		for _, r := range s {
			switch char, _ := json.Marshal(string(r)); {
			case r < 0x10000 && (r < '0' || r > '9') && random.IntN(3) == 0:
				quoted = fmt.Appendf(quoted, `\u%04x`, r)
			default:
				quoted = append(quoted, char[1:len(char)-1]...)
			}
		}
		return append(quoted, '"')
	}
	dst := []byte(space())
	switch {
	case v.IsObject():
		members := v.Map()
		keys := slices.Sorted(maps.Keys(members))
		random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		dst = append(dst, '{')
		for i, key := range keys {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(append(append(dst, space()...), text(key)...), space()...)
			dst = append(append(dst, ':'), reencode(random, members[key])...)
		}
		dst = append(append(dst, space()...), '}')
	case v.IsArray():
		dst = append(dst, '[')
		for i, item := range v.Array() {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, reencode(random, item)...)
		}
		dst = append(append(dst, space()...), ']')
	case v.Type == gjson.String:
		dst = append(dst, text(v.Str)...)
	default:
		dst = append(dst, v.Raw...)
	}
	return append(dst, space()...)
}

// An object that any JSON encoder has written is read as Go's encoder writes it, or is refused.
func TestParseReencoded(t *testing.T) {
	pod := `{"metadata":{"name":"web","namespace":"a","uid":"u1","resourceVersion":"7","labels":{"app":"w<b","b":"\"resourceVersion\":\"8\""}},"spec":{"nodeName":"n1"},"status":{"phase":"Running"}}`
	widget := `{"apiVersion":"example.com/v1","kind":"Widget",` + pod[1:]
	random := rand.New(rand.NewPCG(1, 0))
	for r, src := range map[*Resource]string{pods: pod, widgets: widget} {
		want, err := r.ParseObject([]byte(src))
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			again := reencode(random, gjson.Parse(src))
			got, err := r.ParseObject(again)
			if err != nil {
				t.Fatalf("%s: %v", again, err)
			}
			checkObject(t, r, got)
			if g, w := read(r, got), read(r, want); !reflect.DeepEqual(g, w) {
				t.Fatalf("%s is %+v, want %+v", again, g, w)
			}
		}
	}
}
