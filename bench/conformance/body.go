package conformance

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"regexp"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// plainBody decompresses a body, which must be a single gzip member. It returns other bodies
// unchanged.
func plainBody(r cluster.Answer) ([]byte, error) {
	if r.Header.Get("Content-Encoding") == "" {
		return r.Body, nil
	}
	rest := bytes.NewReader(r.Body)
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

// opened removes the parts of a body that the contract leaves open. Rules read JSON, so a body in
// another format is first converted to JSON.
func opened(r cluster.Answer, open Rule) ([]byte, error) {
	body, err := plainBody(r)
	if err != nil || open == nil {
		return body, err
	}
	kind, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
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

// shownAsJSON returns a protobuf list as JSON with its metadata and its unchanged items. It returns
// any other body as a JSON string of its bytes.
func shownAsJSON(body []byte) ([]byte, error) {
	envelope, err := OpenEnvelope(body)
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
	// Lists of v1beta1 have other field numbers.
	case !strings.HasSuffix(envelope.Kind, "List"), envelope.APIVersion == "meta.k8s.io/v1beta1":
		shown["message"] = envelope.Raw
		return json.Marshal(shown)
	}
	var items [][]byte
	_, meta, err := client.ReadProtoList(bytes.NewReader(body), func(item []byte) {
		items = append(items, bytes.Clone(item))
	})
	if err != nil {
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

// eventsAsJSON converts the events of a protobuf watch.
func eventsAsJSON(body []byte) (shown []byte, err error) {
	for rest := bytes.NewReader(body); rest.Len() > 0; {
		frame, err := readFrame(rest)
		if err != nil {
			return nil, err
		}
		var e metav1.WatchEvent
		if err := e.Unmarshal(frame[4:]); err != nil {
			return nil, err
		}
		object, err := shownAsJSON(e.Object.Raw)
		if err != nil {
			return nil, err
		}
		shown = fmt.Appendf(shown, "%s %s\n", e.Type, object)
	}
	return shown, nil
}

// written checks that a list keeps its bytes after it is decoded into the API's own types and
// encoded again.
func written(body []byte, envelope runtime.Unknown, meta metav1.ListMeta, items [][]byte) error {
	empty := metav1.PartialObjectMetadataList{ListMeta: meta}
	raw, err := empty.Marshal()
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

// noLarger checks that the proxy's compressed body is hardly larger than the apiserver's. A body of
// one repeated byte has half a kilobyte, and there the compressors differ by a few bytes. The proxy
// compresses each page of the cache by itself, so each further page costs a short list up to 300
// bytes. The number of pages depends on the order of the writes.
func noLarger(want, got cluster.Answer) error {
	const slack, share = 512, 10
	if want.Header.Get("Content-Encoding") == "gzip" && len(got.Body) > len(want.Body)+slack+len(want.Body)/share {
		return fmt.Errorf("%d bytes of gzip, the apiserver's are %d", len(got.Body), len(want.Body))
	}
	return nil
}

// age matches a Table's cell that contains only an age, or ends with an age.
var age = regexp.MustCompile(`((?:\d+[ydhms])+)( ago\))?"`)

// sameAges returns two Tables with AGE for each age. It returns an error if ages differ by more
// than the time between the responses. An older age has a larger unit, so it is less exact.
func sameAges(want, got []byte) (w, g []byte, err error) {
	theirs, ours := age.FindAllSubmatch(want, -1), age.FindAllSubmatch(got, -1)
	for i := 0; i < len(theirs) && i < len(ours); i++ {
		t, unit := parseAge(string(theirs[i][1]))
		o, other := parseAge(string(ours[i][1]))
		if d := (t - o).Abs(); d > clockMoves+max(unit, other) {
			return want, got, fmt.Errorf("age %d is %s instead of %s", i, ours[i][1], theirs[i][1])
		}
	}
	by := []byte(`AGE$2"`)
	return age.ReplaceAll(want, by), age.ReplaceAll(got, by), nil
}

// clockMoves is the maximum time between two compared responses on a busy machine.
const clockMoves = time.Minute

// parseAge returns an age and its smallest unit.
func parseAge(text string) (d, unit time.Duration) {
	n := 0
	for _, c := range text {
		if c >= '0' && c <= '9' {
			n = 10*n + int(c-'0')
			continue
		}
		unit = map[rune]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour, 'y': 365 * 24 * time.Hour}[c]
		d, n = d+time.Duration(n)*unit, 0
	}
	return d, unit
}

// columns matches the column definitions of a Table. Normally, only the first event of a watch of
// Tables has them. But the apiserver also sends the event that it encoded for one watch to other
// watches, so any event may have them.
var columns = regexp.MustCompile(`"columnDefinitions":(null|\[[^\]]*\]),`)

// Settled removes the parts of an event that the contract leaves open: the resourceVersion of a
// bookmark, ages, and column definitions.
func Settled(e Event) []byte {
	switch {
	case bytes.Contains(e.Line, []byte(`"kind":"Table"`)):
		line := columns.ReplaceAll(age.ReplaceAll(e.Line, []byte(`AGE$2"`)), nil)
		if e.Type == "BOOKMARK" {
			line = bytes.ReplaceAll(line, fmt.Appendf(nil, `"resourceVersion":"%d"`, e.RV), []byte(`"resourceVersion":"RV"`))
		}
		return line
	case e.Type != "BOOKMARK":
		return e.Line
	case e.Line[0] != '{':
		return SettledFrame(e.Line)
	}
	return bytes.Replace(e.Line, fmt.Appendf(nil, `"resourceVersion":"%d"`, e.RV), []byte(`"resourceVersion":"RV"`), 1)
}
