package projection

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// path reads a path such as "spec/containers/*/name".
func path(text string) (p Path) {
	for s := range strings.SplitSeq(text, "/") {
		if s == "*" {
			p = append(p, Step{Items: true})
		} else {
			p = append(p, Step{Key: s})
		}
	}
	return p
}

func paths(texts ...string) (all []Path) {
	for _, t := range texts {
		all = append(all, path(t))
	}
	return all
}

const pod = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","labels":{"app":"x\"}","k8s.io/b":"\\"}},` +
	`"spec":{"containers":[{"name":"c","ports":[]},{"name":"d","image":"i"}],"nodeName":"w","empty":{}},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"},{"status":"False"}],"start":null,"n":-1.5e3}}`

const kept = `"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7"`

func TestAppend(t *testing.T) {
	for _, c := range []struct {
		name string
		cut  *Projection
		want string
	}{
		{"identity", Keep(nil), `{` + kept + `}}`},
		{"all", nil, pod},
	} {
		got, err := c.cut.Append([]byte("<"), []byte(pod))
		if err != nil || string(got) != "<"+c.want {
			t.Errorf("%s: %v\n got %s\nwant <%s", c.name, err, got, c.want)
		}
	}
}

func TestAnswers(t *testing.T) {
	cut := Keep(paths("object", "rows", "spec/nodeName"))
	short := func(extra string) string { return `{` + kept + `},"spec":{"nodeName":"w"}` + extra + `}` }
	partial := `{"kind":"PartialObjectMetadata","apiVersion":"v1","metadata":{"name":"a","labels":{}}}`
	bare := `{"kind":"PartialObjectMetadata","apiVersion":"v1","metadata":{"name":"a"}}`
	table := func(object string) string {
		return `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"9"},"columnDefinitions":[{"name":"Name"}],"rows":[{"cells":["a"],"object":` + object + `},{"cells":[1],"object":null}]}`
	}
	with := strings.TrimSuffix(pod, "}") + `,"object":{"a":1},"rows":[{"object":2}]}`
	for _, c := range []struct {
		name         string
		shape        Shape
		answer, want string
	}{
		{"object", Object, with + "\n", short(`,"object":{"a":1},"rows":[{"object":2}]`) + "\n"},
		{"table of one", Object, table(partial), table(bare)},
		{"list", List, `{"kind":"PodList","metadata":{"continue":"x"},"items":[` + pod + `,` + pod + `]}` + "\n", `{"kind":"PodList","metadata":{"continue":"x"},"items":[` + short("") + `,` + short("") + `]}` + "\n"},
		{"custom list", List, `{"apiVersion":"v1","items":[` + pod + `],"kind":"PodList","metadata":{"continue":""}}`, `{"apiVersion":"v1","items":[` + short("") + `],"kind":"PodList","metadata":{"continue":""}}`},
		{"empty lists", List, `{"items":[],"rows":null}`, `{"items":[],"rows":null}`},
		{"table", List, table(pod), table(short(""))},
		{
			"a custom resource of the kind Table", Object,
			`{"apiVersion":"ex.io/v1","kind":"Table","metadata":{"name":"a","x":1},"rows":[{"object":1,"x":2}],"spec":{}}`,
			`{"apiVersion":"ex.io/v1","kind":"Table","metadata":{"name":"a"},"rows":[{"object":1,"x":2}],"spec":{}}`,
		},
		{
			"events", Events,
			`{"type":"ADDED","object":` + pod + "}\n" + `{"type":"BOOKMARK","object":` + partial + "}\n" + `{"type":"ERROR","object":{"kind":"Status","code":410}}` + "\n" + `{"type":"DELETED","object":` + table(pod) + "}\n",
			`{"type":"ADDED","object":` + short("") + "}\n" + `{"type":"BOOKMARK","object":` + partial + "}\n" + `{"type":"ERROR","object":{"kind":"Status","code":410}}` + "\n" + `{"type":"DELETED","object":` + table(short("")) + "}\n",
		},
	} {
		got, err := cut.AppendAnswer(nil, []byte(c.answer), c.shape)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %v\n got %s\nwant %s", c.name, err, got, c.want)
		}
		read, err := io.ReadAll(cut.Reader(io.NopCloser(iotest.OneByteReader(strings.NewReader(c.answer))), c.shape))
		if err != nil || string(read) != c.want {
			t.Errorf("%s, byte by byte: %v\n got %s\nwant %s", c.name, err, read, c.want)
		}
		var indented, indentedWant bytes.Buffer
		if c.shape == Events || json.Indent(&indented, []byte(c.answer), "", "  ") != nil || json.Indent(&indentedWant, []byte(c.want), "", "  ") != nil {
			continue
		}
		got, err = cut.AppendAnswer(nil, indented.Bytes(), c.shape)
		var compact, want bytes.Buffer
		if err = cmpErr(err, json.Compact(&compact, got), json.Compact(&want, indentedWant.Bytes())); err != nil || compact.String() != want.String() {
			t.Errorf("%s, indented: %v\n got %s", c.name, err, got)
		}
	}
}

func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// random returns a random value and adds the paths in it to all.
func random(r *rand.Rand, depth int, at Path, all *[]Path) any {
	*all = append(*all, slices.Clone(at))
	switch n := r.IntN(8); {
	case n < 3 && depth > 0:
		object := map[string]any{}
		for range r.IntN(4) {
			key := []string{"a", "b", "c.d", "e/\"f", "\u00e9<"}[r.IntN(5)]
			object[key] = random(r, depth-1, append(slices.Clip(at), Step{Key: key}), all)
		}
		return object
	case n < 5 && depth > 0:
		list := []any{}
		for range r.IntN(4) {
			list = append(list, random(r, depth-1, append(slices.Clip(at), Step{Items: true}), all))
		}
		return list
	}
	return []any{nil, true, 1.5, -3.0, "", "x", "}],\"\\{["}[r.IntN(7)]
}

// cutBy is the plain implementation: it cuts decoded values, one path after the other.
func cutBy(v any, paths []Path, keep bool) (_ any, stays bool) {
	if slices.ContainsFunc(paths, func(p Path) bool { return len(p) == 0 }) {
		return v, keep
	}
	below := func(s Step) (rest []Path) {
		for _, p := range paths {
			if p[0] == s {
				rest = append(rest, p[1:])
			}
		}
		return rest
	}
	switch v := v.(type) {
	case map[string]any:
		if !slices.ContainsFunc(paths, func(p Path) bool { return !p[0].Items }) {
			return v, !keep
		}
		object := map[string]any{}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			rest := below(Step{Key: key})
			if len(rest) == 0 {
				if !keep {
					object[key] = v[key]
				}
				continue
			}
			if part, ok := cutBy(v[key], rest, keep); ok {
				object[key] = part
			}
		}
		return object, true
	case []any:
		rest := below(Step{Items: true})
		if len(rest) == 0 {
			return v, !keep
		}
		list := []any{}
		for _, item := range v {
			if part, ok := cutBy(item, rest, keep); ok {
				list = append(list, part)
			}
		}
		return list, true
	case nil:
		return v, true
	}
	return v, !keep
}

// TestModel compares cuts of random objects by random paths with those of a plain implementation,
// in pieces of random length.
func TestModel(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		var all []Path
		object, _ := random(r, 5, nil, &all).(map[string]any)
		if object == nil {
			continue
		}
		var some []Path
		for range r.IntN(5) {
			if p := all[r.IntN(len(all))]; len(p) > 0 {
				some = append(some, append(slices.Clip(p), path([]string{"a", "*", "b"}[r.IntN(3)])[:r.IntN(2)]...))
			}
		}
		keep := r.IntN(2) == 0
		cut := Drop(some)
		if keep {
			cut = Keep(some)
		}
		var whole any = object
		want, _ := cutBy(object, append(slices.Clone(some), map[bool][]Path{true: Identity}[keep]...), keep)
		text, err := json.Marshal(whole)
		if err != nil {
			t.Fatal(err)
		}
		c := new(cutter)
		c.reset(nil, cut.object)
		for rest := text; len(rest) > 0; {
			n := 1 + r.IntN(len(rest))
			if err := c.write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		var got any
		if err := json.Unmarshal(c.out, &got); err != nil {
			t.Fatalf("seed %d: %v: %s of %s by %v", seed, err, c.out, text, some)
		}
		if len(c.out) > len(text) {
			t.Errorf("seed %d: longer than the object: %s", seed, c.out)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d, keep %t: %s by %v\n got %s\nwant %v", seed, keep, text, some, c.out, want)
		}
	}
}

func TestMalformed(t *testing.T) {
	for _, text := range []string{`{`, `{"metadata":`, `{"a" 1}`, `{1:2}`, `{"a":1 2}`, `{"metadata":{]}`} {
		if got, err := Keep(nil).Append(nil, []byte(text)); err == nil {
			t.Errorf("%s was cut to %s", text, got)
		}
	}
	_, err := io.ReadAll(Keep(nil).Reader(io.NopCloser(strings.NewReader(`{"a" 1}`)), Object))
	if err == nil {
		t.Error("a malformed answer ended as if it were whole")
	}
	if _, err = io.ReadAll(Keep(nil).Reader(io.NopCloser(strings.NewReader(`{"items":[{`)), List)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half an answer ended with %v", err)
	}
}

// FuzzAppend holds that no bytes make a projection panic, and that what stays of valid JSON is
// valid.
func FuzzAppend(f *testing.F) {
	f.Add([]byte(pod), uint8(3))
	f.Add([]byte(`{"kind":"Table","rows":[{"object":1}]}`), uint8(9))
	cut := Keep(paths("spec/containers/*/name", "status", "rows/*/object"))
	f.Fuzz(func(t *testing.T, text []byte, piece uint8) {
		for shape := range shapes {
			whole, err := cut.AppendAnswer(nil, text, shape)
			if json.Valid(text) && (err != nil || len(bytes.TrimSpace(text)) > 0 && (text[0] == '{') && !json.Valid(whole)) {
				t.Errorf("%q became %q, %v", text, whole, err)
			}
			c := new(cutter)
			c.reset(nil, cut.shapes[shape])
			var failed error
			for part := range slices.Chunk(text, 1+int(piece)) {
				if failed == nil {
					failed = c.write(part)
				}
			}
			if err == nil && (failed != nil || string(c.out) != string(whole)) {
				t.Errorf("%q in pieces of %d: %q, %v instead of %q", text, piece, c.out, failed, whole)
			}
		}
	})
}
