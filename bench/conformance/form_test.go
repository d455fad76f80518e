package conformance

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	apiobject "github.com/watchproxy/watchproxy/watchcache/object"
)

// Every row is asked for in plain JSON over HTTP/1.1, and in other forms: one of them by lot, or all.
var (
	allForms = flag.Bool("all-forms", false, "ask for every row in every form, instead of in one more by lot")
	formSeed = flag.Uint64("form-seed", rand.Uint64(), "which form each row is asked for in")
)

// form is a way to ask for an answer: what is accepted for a get, a list and a watch. What is empty is not offered.
type form struct {
	name             string
	get, list, watch string
	gzip, http2      bool
	forwarded        bool
}

const meta = ";v=v1;g=meta.k8s.io"

// encodings are what the apiserver offers, as clients ask for it: custom resources have no protobuf form, and errors
// none of the transformed ones.
var encodings = []form{
	{name: "JSON", get: "application/json", list: "application/json", watch: "application/json"},
	{name: "indented", get: "application/json;pretty=1", list: "application/json;pretty=1", watch: "application/json;pretty=1"},
	{name: "YAML", get: "application/yaml", list: "application/yaml"},
	ofType("protobuf", "application/vnd.kubernetes.protobuf"),
	partial("metadata", "application/json"),
	partial("metadata in protobuf", "application/vnd.kubernetes.protobuf"),
	{name: "Table", get: table, list: table, watch: table, forwarded: true},
}

const table = "application/json;as=Table" + meta + ",application/json"

func ofType(name, mime string) form {
	accept := mime + ",application/json"
	return form{name: name, get: accept, list: accept, watch: accept}
}

func partial(name, mime string) form {
	one := mime + ";as=PartialObjectMetadata" + meta + ",application/json"
	return form{name: name, get: one, list: mime + ";as=PartialObjectMetadataList" + meta + ",application/json", watch: one}
}

// forms are all encodings, plain and compressed, over both protocols, but for the one of the row itself.
var forms = func() (all []form) {
	for _, f := range encodings {
		for _, f.gzip = range []bool{false, true} {
			for _, f.http2 = range []bool{false, true} {
				all = append(all, f)
			}
		}
	}
	return all[1:]
}()

func (f form) String() string {
	words := []string{f.name}
	if f.gzip {
		words = append(words, "gzip")
	}
	if f.http2 {
		words = append(words, "HTTP/2")
	}
	return strings.Join(words, " ")
}

// lots are those of the forms that something of a name is asked for in.
func lots(name string, forms []form) []form {
	if *allForms {
		return forms
	}
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, name, *formSeed)
	return []form{forms[h.Sum64()%uint64(len(forms))]}
}

// watchedForms are those of watches, which are never compressed.
var watchedForms = slices.DeleteFunc(slices.Clone(forms), func(f form) bool { return f.gzip || f.watch == "" })

var plainPath = regexp.MustCompile(`^/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+)?/([^/]+)(/[^/]+)?$`)

// accept is what to accept for what a request asks for, "" if that is not offered or the request is not plain.
func (f form) accept(r request) string {
	path, query, _ := strings.Cut(r.target, "?")
	parts := plainPath.FindStringSubmatch(path)
	for _, name := range []string{"Accept", "Accept-Encoding", "User-Agent"} {
		if len(r.header.Values(name)) > 0 {
			return ""
		}
	}
	switch {
	case r.method != "" || parts == nil || parts[1] == "status" || parts[1] == "watch" || parts[1] == "finalize" || // a namespace's own, and a prefix
		strings.HasPrefix(query, "pretty") || strings.Contains(query, "&pretty"):
		return ""
	case parts[2] != "":
		return f.get
	case watches(query):
		return f.watch
	}
	return f.list
}

func watches(query string) bool {
	values, _ := url.ParseQuery(query)
	return values.Has("watch") && values.Get("watch") != "0" && !strings.EqualFold(values.Get("watch"), "false")
}

// of is a request in the form.
func (f form) of(r request) (request, bool) {
	accept := f.accept(r)
	if accept == "" {
		return r, false
	}
	r = r.with("Accept", accept)
	if f.gzip {
		r = r.with("Accept-Encoding", "gzip")
	}
	r.http2 = f.http2
	return r, true
}

// inForms is a row in other forms.
func (r row) inForms() (rows []row) {
	for _, f := range lots(r.name+r.target, forms) {
		asked, ok := f.of(r.request)
		if !ok {
			continue
		}
		v := r
		v.request, v.name = asked, r.name+", "+f.String()
		v.says = "" // in JSON
		v.yaml = f.name == "YAML"
		if f.forwarded {
			v.open = ageless(r.open)
			if v.from == cache {
				v.from = upstream
			}
		}
		rows = append(rows, v)
	}
	return rows
}

// plain undoes what the transport adds: it takes a body of one gzip member.
func (r reply) plain() ([]byte, error) {
	if r.header.Get("Content-Encoding") == "" {
		return r.body, nil
	}
	rest := bytes.NewReader(r.body)
	z, err := gzip.NewReader(rest)
	if err != nil {
		return nil, err
	}
	z.Multistream(false)
	plain, err := io.ReadAll(z)
	if err = errors.Join(err, z.Close()); err == nil && rest.Len() > 0 {
		err = fmt.Errorf("%d bytes follow the gzip member", rest.Len())
	}
	return plain, err
}

// opened is a body without what the contract leaves open. Rules read JSON; what else there is becomes JSON that shows
// all of it.
func opened(r reply, open rule) ([]byte, error) {
	body, err := r.plain()
	if err != nil || open == nil {
		return body, err
	}
	kind, params, _ := mime.ParseMediaType(r.header.Get("Content-Type"))
	switch {
	case params["stream"] == "watch":
		if body, err = eventsAsJSON(body); err != nil {
			return nil, err
		}
	case kind == "application/yaml":
		if body, err = yaml.YAMLToJSON(body); err != nil {
			return nil, err
		}
	case kind == "application/vnd.kubernetes.protobuf":
		if body, err = shownAsJSON(body); err != nil {
			return nil, err
		}
	}
	return open(body)
}

// shownAsJSON shows a list in protobuf as its metadata and its items as they are, anything else as its bytes.
func shownAsJSON(body []byte) ([]byte, error) {
	envelope, err := openEnvelope(body)
	if err != nil {
		return nil, err
	}
	shown := map[string]any{"kind": envelope.Kind, "apiVersion": envelope.APIVersion}
	switch {
	case envelope.Kind == "Status":
		var s metav1.Status
		if err := s.Unmarshal(envelope.Raw); err != nil {
			return nil, err
		}
		s.TypeMeta = metav1.TypeMeta{Kind: envelope.Kind, APIVersion: envelope.APIVersion}
		return json.Marshal(s)
	case !strings.HasSuffix(envelope.Kind, "List"), envelope.APIVersion == "meta.k8s.io/v1beta1": // whose fields have other numbers
		shown["message"] = envelope.Raw
		return json.Marshal(shown)
	}
	raw, items, err := apiobject.SplitProtoList(envelope.Raw)
	if err != nil {
		return nil, err
	}
	var meta metav1.ListMeta
	if err := meta.Unmarshal(raw); err != nil {
		return nil, err
	}
	encoded := make([]string, len(items))
	for i, item := range items {
		encoded[i] = base64.StdEncoding.EncodeToString(item)
	}
	if err := written(body, envelope, meta, items); err != nil {
		return nil, err
	}
	shown["metadata"], shown["items"] = meta, encoded
	return json.Marshal(shown)
}

// eventsAsJSON shows the events of a watch in protobuf.
func eventsAsJSON(body []byte) (shown []byte, err error) {
	for len(body) >= 4 {
		n := 4 + int(binary.BigEndian.Uint32(body))
		if n > len(body) {
			break
		}
		var e metav1.WatchEvent
		if err := e.Unmarshal(body[4:n]); err != nil {
			return nil, err
		}
		object, err := shownAsJSON(e.Object.Raw)
		if err != nil {
			return nil, err
		}
		shown = fmt.Appendf(shown, "%s %s\n", e.Type, object)
		body = body[n:]
	}
	if len(body) > 0 {
		err = fmt.Errorf("%d bytes are no watch event", len(body))
	}
	return shown, err
}

var age = regexp.MustCompile(`"(\d+[ydhms])+"`)

// ageless is the rule of Tables: their cells tell ages, as of the moment in which they are written. What is asked of the
// apiserver twice at the same time differs in them.
func ageless(open rule) rule {
	if open == nil {
		open = same
	}
	return func(body []byte) ([]byte, error) { return open(age.ReplaceAll(body, []byte(`"AGE"`))) }
}

// written checks that a list is what the API's own types write of what was read out of it.
func written(body []byte, envelope runtime.Unknown, meta metav1.ListMeta, items [][]byte) error {
	list := metav1.PartialObjectMetadataList{ListMeta: meta}
	raw, err := list.Marshal()
	if err != nil {
		return err
	}
	for _, item := range items {
		raw = protowire.AppendBytes(protowire.AppendTag(raw, 2, protowire.BytesType), item)
	}
	envelope.Raw = raw
	again, err := envelope.Marshal()
	if err == nil && !bytes.Equal(again, body[4:]) {
		err = fmt.Errorf("a list is written in another way\n%s", excerpts(again, body[4:]))
	}
	return err
}

// unwritable tells that the apiserver could not write an answer: its YAML has no control characters.
func unwritable(r reply) bool {
	return r.status == http.StatusInternalServerError && bytes.Contains(r.body, []byte("control characters are not allowed"))
}

// A list that is compressed is no larger than the apiserver's.
func noLarger(want, got reply) error {
	if want.header.Get("Content-Encoding") == "gzip" && len(got.body) > len(want.body) {
		return fmt.Errorf("%d bytes of gzip, the apiserver's are %d", len(got.body), len(want.body))
	}
	return nil
}
