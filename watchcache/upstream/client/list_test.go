package client

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/tidwall/gjson"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

var tableConfigMaps = &object.Resource{
	GVR: configmaps, Kind: "ConfigMap", ListKind: "ConfigMapList", Namespaced: true, Encoding: object.Table,
	Columns: object.Columns{Definitions: []byte("[]")},
}

// pageOf reads a page and returns the keys of its objects.
func pageOf(r *object.Resource, body []byte) (p ListPage, keys []string, err error) {
	p, err = readPage(r, bytes.NewReader(body), func(o *object.Object) error {
		keys = append(keys, o.Key())
		return nil
	})
	return p, keys, err
}

// lists returns a list of ConfigMaps in each form of upstream. size is the length of an annotation in
// JSON, which takes half of it in protobuf.
func lists(t testing.TB, objects, size int) map[string]struct {
	r    *object.Resource
	body []byte
} {
	t.Helper()
	list := corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "c"}}
	var items, rows []string
	for i := range objects {
		c := configMap(fmt.Sprintf("c%04d", i), "7")
		c.Annotations = map[string]string{"k": strings.Repeat(`\"`, size/4)}
		list.Items = append(list.Items, *c)
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, string(text))
		rows = append(rows, `{"cells":["a"],"object":`+string(text)+`}`)
	}
	const meta = `"metadata":{"resourceVersion":"9","continue":"c"}`
	typed := `{"kind":"ConfigMapList","apiVersion":"v1",` + meta + `,"items":[` + strings.Join(items, ",") + "]}\n"
	custom := `{"apiVersion":"v1","items":[` + strings.Join(items, ",") + `],"kind":"ConfigMapList",` + meta + "}\n"
	table := `{"kind":"Table","apiVersion":"meta.k8s.io/v1",` + meta + `,"columnDefinitions":[],"rows":[` + strings.Join(rows, ",") + "]}\n"
	return map[string]struct {
		r    *object.Resource
		body []byte
	}{
		"JSON":            {jsonConfigMaps, []byte(typed)},
		"custom resource": {jsonConfigMaps, []byte(custom)},
		"Table":           {tableConfigMaps, []byte(table)},
		"protobuf":        {protoConfigMaps, enveloped(t, "ConfigMapList", &list)},
	}
}

// A page is read at most one object ahead, plus a buffer of fixed size.
func TestPageHoldsOneObject(t *testing.T) {
	const objects, size, buffer = 100, 100 << 10, 32 << 10
	for name, list := range lists(t, objects, size) {
		ahead, seen := 0, 0
		whole := bytes.NewReader(list.body)
		each := len(list.body) / objects // of equal size, beside few bytes around them
		p, err := readPage(list.r, whole, func(*object.Object) error {
			seen++
			ahead = max(ahead, len(list.body)-whole.Len()-seen*each)
			return nil
		})
		if err != nil || seen != objects || p != (ListPage{9, "c"}) {
			t.Fatalf("%s: %d objects, %+v, %v", name, seen, p, err)
		}
		if ahead > buffer {
			t.Errorf("%s: %d bytes were read beyond an object", name, ahead)
		}
	}
}

// A page has the same content however its bytes arrive. A cut page is an error. If its connection breaks, the
// page is not malformed, because it is asked for again.
func TestPagesArriveInParts(t *testing.T) {
	errLost := errors.New("connection lost")
	for name, list := range lists(t, 3, 10) {
		want, keys, err := pageOf(list.r, list.body)
		if err != nil || len(keys) != 3 {
			t.Fatalf("%s: %v, %v", name, keys, err)
		}
		got := 0
		p, err := readPage(list.r, iotest.OneByteReader(bytes.NewReader(list.body)), func(o *object.Object) error {
			if o.Key() == keys[got] {
				got++
			}
			return nil
		})
		if err != nil || p != want || got != 3 {
			t.Errorf("%s: %+v, %d objects, %v", name, p, got, err)
		}
		end := len(bytes.TrimSpace(list.body))
		if name == "protobuf" {
			end -= 4 // without the last, empty fields, the list would still be whole
		}
		for cut := range end {
			if _, _, err := pageOf(list.r, list.body[:cut]); err == nil {
				t.Errorf("%s: %d of %d bytes are taken for a list", name, cut, len(list.body))
			}
			broken := io.MultiReader(bytes.NewReader(list.body[:cut]), iotest.ErrReader(errLost))
			_, err := readPage(list.r, broken, func(*object.Object) error { return nil })
			if !errors.Is(err, errLost) || errors.Is(err, object.ErrMalformed) {
				t.Errorf("%s: broken after %d bytes: %v", name, cut, err)
			}
		}
	}
}

// After an error of the reader's user, the page is still checked, and its own error counts. The list of another
// kind is no page.
func TestPageErrors(t *testing.T) {
	errUser := errors.New("enough")
	for name, list := range lists(t, 3, 10) {
		calls := 0
		each := func(*object.Object) error { calls++; return errUser }
		if p, err := readPage(list.r, bytes.NewReader(list.body), each); !errors.Is(err, errUser) || calls != 1 || p.RV != 9 {
			t.Errorf("%s: %+v, %v, %d calls", name, p, err, calls)
		}
		if _, err := readPage(list.r, bytes.NewReader(list.body[:len(list.body)-6]), each); err == nil || errors.Is(err, errUser) {
			t.Errorf("%s, cut: %v", name, err)
		}
		other := *list.r
		other.ListKind = "SecretList"
		if _, _, err := pageOf(&other, list.body); other.Encoding != object.Table && !errors.Is(err, object.ErrMalformed) {
			t.Errorf("%s, of another kind: %v", name, err)
		}
	}
}

// repeated is an endless body.
type repeated byte

func (r repeated) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r)
	}
	return len(p), nil
}

// An object that does not end, or that announces a huge size, ends a page.
func TestLongObjectsEndAPage(t *testing.T) {
	text := strings.NewReader(`{"kind":"ConfigMapList","items":[{"a":"`)
	huge := append(bytes.Clone(ProtobufPrefix), 0x12, 0xff, 0xff, 0xff, 0x7f, 0x12, 0xff, 0xff, 0xff, 0x7f)
	for r, body := range map[*object.Resource]io.Reader{
		jsonConfigMaps:  io.MultiReader(text, repeated('a')),
		protoConfigMaps: bytes.NewReader(huge),
	} {
		if _, err := readPage(r, body, nil); !errors.Is(err, object.ErrMalformed) {
			t.Errorf("%v: %v", r.Encoding, err)
		}
	}
}

// The limit is for each object, not for all of them.
func TestManyObjectsAreNoLongObject(t *testing.T) {
	const head, item, tail = `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[`,
		`{"metadata":{"name":"a","namespace":"ns","resourceVersion":"7","annotations":{"a":"`, `"}}}`
	parts := []io.Reader{strings.NewReader(head)}
	const objects, size = 5, maxValue / 4
	for i := range objects {
		if i > 0 {
			parts = append(parts, strings.NewReader(","))
		}
		parts = append(parts, strings.NewReader(item), io.LimitReader(repeated('a'), size), strings.NewReader(tail))
	}
	n := 0
	_, err := readPage(jsonConfigMaps, io.MultiReader(append(parts, strings.NewReader("]}"))...), func(*object.Object) error {
		n++
		return nil
	})
	if err != nil || n != objects {
		t.Errorf("%d objects, %v", n, err)
	}
}

// wholePage reads a page whose body is in memory. Pages were once read so.
func wholePage(r *object.Resource, body []byte) (p ListPage, objects []*object.Object, err error) {
	if !gjson.ValidBytes(body) {
		return p, nil, fmt.Errorf("%w: list of %s is not JSON", object.ErrMalformed, r.GVR.Resource)
	}
	list := gjson.ParseBytes(body)
	p.Next = list.Get("metadata.continue").Str
	if p.RV, err = object.ParseResourceVersion(list.Get("metadata.resourceVersion").Str); err != nil {
		return p, nil, err
	}
	items := list.Get("items")
	if !items.IsArray() && items.Type != gjson.Null || list.Get("apiVersion").Str != r.APIVersion() ||
		list.Get("kind").Str != r.ListKind {
		return p, nil, fmt.Errorf("%w: %.200s is no %s", object.ErrMalformed, body, r.ListKind)
	}
	items.ForEach(func(_, item gjson.Result) bool {
		var o *object.Object
		if o, err = r.ParseObject([]byte(item.Raw)); err == nil {
			objects = append(objects, o)
		}
		return err == nil
	})
	return p, objects, err
}

func FuzzJSONPage(f *testing.F) {
	for name, list := range lists(f, 2, 4) {
		if name != "protobuf" {
			f.Add(list.body)
		}
	}
	const item = `{"metadata":{"name":"a","namespace":"ns","resourceVersion":"7"}}`
	for _, items := range []string{
		`null`, `{}`, `[]`, `[ ]`, `[1]`, `[null,"a",true]`, `[` + item + `,]`, `[` + item + item + `]`, `[,]`, `1`, `[`, `]`, `[}`,
		`[` + item + `],"items":[1]`, `null,"items":[` + item + `]`, `[` + item + `,` + item + `]`, "[\n\t" + item + " , " + item + "\r\n]",
	} {
		f.Add([]byte(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":` + items + `}`))
		f.Add([]byte(` { "it\u0065ms" : ` + items + `, "metadata":{},"metadata":{"resourceVersion":"9"} , "kind":"ConfigMapList","apiVersion":"v1"} `))
	}
	for _, body := range []string{"", "{}", "[]", "1", `{"a":1,}`, "{\"items\":[\"\xff\\ud800\"],\"\xfe\":1}", `{"a":1}x`, `{"a":tru}`, `{1:2}`, `{"a" 1}`, `{"a":"\`, `{,}`, `{"a":1`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		want, all, wrong := wholePage(jsonConfigMaps, body)
		var objects []*object.Object
		p, err := readPage(jsonConfigMaps, iotest.HalfReader(bytes.NewReader(body)), func(o *object.Object) error {
			objects = append(objects, o)
			return nil
		})
		if (err == nil) != (wrong == nil) || errors.Is(err, object.ErrMalformed) != errors.Is(wrong, object.ErrMalformed) && json.Valid(body) && gjson.ParseBytes(body).IsObject() {
			t.Fatalf("%q: %v, read as a whole: %v", body, err, wrong)
		}
		same := func(a, b *object.Object) bool { return a.Key() == b.Key() && bytes.Equal(a.Item(), b.Item()) }
		if err == nil && (p != want || !slices.EqualFunc(objects, all, same)) {
			t.Fatalf("%q: %+v and %d objects, read as a whole: %+v and %d", body, p, len(objects), want, len(all))
		}
	})
}

// The limit of a page follows the mean size of the cached objects. A list of an unchanged collection
// returns the cached objects, so that there is no second copy.
func TestListBesideACache(t *testing.T) {
	for size, limit := range map[int]string{10: "500", 100 << 10: "81", 9 << 20: "20"} {
		list := lists(t, 2, size)["JSON"]
		var objects []*object.Object
		_, err := readPage(list.r, bytes.NewReader(list.body), func(o *object.Object) error {
			objects = append(objects, o)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		asked := ""
		c := of(roundTrip(func(r *http.Request) (*http.Response, error) {
			asked = cmp.Or(asked, r.URL.Query().Get("limit"))
			body := bytes.Replace(list.body, []byte(`,"continue":"c"`), nil, 1)
			body = bytes.Replace(body, []byte(`"resourceVersion":"7"`), []byte(`"resourceVersion":"8"`), 1)
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {MimeJSON}}, Body: io.NopCloser(bytes.NewReader(body))}, nil
		}))
		cache := watchcache.New(*list.r, watchcache.Limits{})
		cache.Writer().Reset(objects, 9)
		changes, rv, err := c.List(t.Context(), cache, 9, "NotOlderThan")
		if err != nil || rv != 9 || len(changes) != 2 || asked != limit {
			t.Fatalf("limit %s, want %s; %d changes at %d, %v", asked, limit, len(changes), rv, err)
		}
		if changes[0].Object == objects[0] || changes[1].Object != objects[1] {
			t.Errorf("the changed object is the cached one: %t; the unchanged one: %t", changes[0].Object == objects[0], changes[1].Object == objects[1])
		}
	}
}

// An item of a protobuf list must not reach beyond its list, even if the body ends there.
func TestItemBeyondItsList(t *testing.T) {
	field := func(number protowire.Number, size int, value []byte) []byte {
		b := protowire.AppendTag(nil, number, protowire.BytesType)
		return append(protowire.AppendVarint(b, uint64(size)), value...)
	}
	const raw, items, longer = 2, 2, 8
	for size, want := range map[int]error{longer: nil, longer - 1: object.ErrMalformed} {
		item := field(items, longer, make([]byte, longer))
		body := append(bytes.Clone(ProtobufPrefix), field(raw, len(item)-longer+size, item)...)
		n := 0
		_, _, err := ReadProtoList(bytes.NewReader(body), func([]byte) { n++ })
		if !errors.Is(err, want) || want == nil && n != 1 {
			t.Errorf("a list of %d bytes too few: %d items, %v", longer-size, n, err)
		}
	}
}

// Every list in protobuf has the prefix.
func TestListWithoutPrefix(t *testing.T) {
	for _, body := range []string{"", "k8s", "none"} {
		_, _, err := ReadProtoList(strings.NewReader(body), func([]byte) {})
		if !errors.Is(err, object.ErrMalformed) {
			t.Errorf("%q: %v", body, err)
		}
	}
}
