package allowed

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

// item is an object of a list, or a row of a Table.
type item struct {
	key  string // namespace/name, or name
	rv   string
	text string // JSON with sorted keys
}

// list is a decoded list.
type list struct {
	metav1.ListMeta
	items []item
}

func (l list) keys() (all []string) {
	for _, i := range l.items {
		all = append(all, i.key)
	}
	return all
}

// decode decodes a list in any form.
func decode(a cluster.Answer) (l list, err error) {
	body := a.Body
	if strings.HasPrefix(a.Header.Get("Content-Type"), inProtobuf) {
		if body, err = fromProtobuf(body); err != nil {
			return l, err
		}
	}
	var raw struct {
		Metadata          metav1.ListMeta
		Items             []any
		ColumnDefinitions []metav1.TableColumnDefinition
		Rows              []struct {
			Cells  []any
			Object any
		}
	}
	if err := json.Unmarshal(body, &raw); err != nil {
		return l, fmt.Errorf("%w: %.300q", err, body)
	}
	l.ListMeta = raw.Metadata
	for _, o := range raw.Items {
		l.items = append(l.items, newItem(o, o))
	}
	for _, r := range raw.Rows {
		for i, c := range raw.ColumnDefinitions {
			if c.Name == "Age" {
				r.Cells[i] = nil
			}
		}
		l.items = append(l.items, newItem(r.Object, []any{r.Cells, r.Object}))
	}
	return l, nil
}

// fromProtobuf returns a list in JSON.
func fromProtobuf(body []byte) ([]byte, error) {
	envelope, err := conformance.OpenEnvelope(body)
	if err != nil {
		return nil, err
	}
	if envelope.Kind == "PartialObjectMetadataList" { // the scheme does not have it
		partial := &metav1.PartialObjectMetadataList{}
		if err := partial.Unmarshal(envelope.Raw); err != nil {
			return nil, err
		}
		return json.Marshal(partial)
	}
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	return json.Marshal(decoded)
}

// newItem returns the item of an object.
func newItem(object, all any) item {
	m, _ := object.(map[string]any)
	about, _ := m["metadata"].(map[string]any)
	key, _ := about["name"].(string)
	if namespace, _ := about["namespace"].(string); namespace != "" {
		key = namespace + "/" + key
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // it was JSON
	}
	rv, _ := about["resourceVersion"].(string)
	return item{key, rv, string(text)}
}

// differs returns the difference between two lists of items, or "".
func differs(want, got []item) string {
	for i := range max(len(want), len(got)) {
		switch {
		case i == len(want):
			return fmt.Sprintf("%s is too much, of %d instead of %d", got[i].key, len(got), len(want))
		case i == len(got):
			return fmt.Sprintf("%s is missing, of %d there are %d", want[i].key, len(want), len(got))
		case want[i] != got[i]:
			return fmt.Sprintf("%d: want %s %.300s\n got %s %.300s", i, want[i].key, want[i].text, got[i].key, got[i].text)
		}
	}
	return ""
}

func sortItems(items []item) {
	slices.SortFunc(items, func(a, b item) int { return strings.Compare(a.key, b.key) })
}

// get sends a request of a caller, and decompresses the answer.
func get(ctx context.Context, e *cluster.Endpoint, c caller, r cluster.Request) (cluster.Answer, error) {
	a, err := e.Ask(ctx, c.as(r))
	if err == nil && a.Header.Get("Content-Encoding") == "gzip" {
		var plain io.Reader
		if plain, err = gzip.NewReader(bytes.NewReader(a.Body)); err == nil {
			a.Body, err = io.ReadAll(plain)
		}
	}
	if err != nil {
		return a, fmt.Errorf("%s: %s: %w", c.name, r.Target, err)
	}
	return a, nil
}

// listed returns a list of a caller. If the caller may not list it, allowed is false.
func listed(ctx context.Context, e *cluster.Endpoint, c caller, r cluster.Request) (l list, allowed bool, err error) {
	a, err := get(ctx, e, c, r)
	switch {
	case err != nil:
		return l, false, err
	case a.Status == http.StatusForbidden:
		return l, false, nil
	case a.Status != http.StatusOK:
		return l, false, fmt.Errorf("%s: %s: %d %.300s", c.name, r.Target, a.Status, a.Body)
	}
	l, err = decode(a)
	return l, true, err
}
