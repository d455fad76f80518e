package shards

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
	"github.com/watchproxy/watchproxy/bench/workload"
)

const (
	inJSON     = "application/json"
	inProtobuf = "application/vnd.kubernetes.protobuf,application/json" // custom resources have no protobuf
	inYAML     = "application/yaml"
	asTable    = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
	asPartial  = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// read is a list that all ways are asked for.
type read struct {
	of      resource
	shard   shard
	request cluster.Request
	exact   bool // at an exact resourceVersion
	one     bool // of one object, by its name
	pages   bool
}

func (r read) String() string {
	return fmt.Sprintf("%s (%s, gzip %q)", r.request.Target, r.request.Header.Get("Accept"), r.request.Header.Get("Accept-Encoding"))
}

// drawRead draws a list.
func (w *world) drawRead(random *rand.Rand) (r read) {
	oneOf := func(all ...string) string { return all[random.IntN(len(all))] }
	r.of = resources[random.IntN(len(resources))]
	namespace := oneOf("", "", oneOf(w.seeded.namespaces...))
	r.shard = drawShard(random, w.seeded.uids[r.of.Resource], append([]string{"", "none"}, w.seeded.namespaces...))
	query := []string{parameter(random, r.shard.text)}
	add := func(name, value string) { query = append(query, name+"="+url.QueryEscape(value)) }
	if random.IntN(3) == 0 {
		add("labelSelector", oneOf("of=seed", "color=red", "color!=red", "color in (red,blue)", "!color", "of,color=green"))
	}
	if random.IntN(4) == 0 {
		field := "metadata.name=seed-" + fmt.Sprint(random.IntN(len(w.seeded.uids[r.of.Resource])))
		if r.of.field != "" {
			field = oneOf(field, r.of.field+"="+oneOf(colors...), r.of.field+"!=red")
		}
		field = oneOf(field, strings.Replace(field, "name=", "name!=", 1))
		r.one = strings.HasPrefix(field, "metadata.name=")
		add("fieldSelector", field)
	}
	if r.pages = random.IntN(3) == 0; r.pages {
		add("limit", oneOf("7", "20", "30", "50", "1000"))
	}
	switch random.IntN(6) {
	case 0, 1:
		add("resourceVersion", "0")
	case 2:
		add("resourceVersion", oneOf(w.seeded.middle, w.seeded.end))
		r.exact = true
		add("resourceVersionMatch", "Exact")
	case 3:
		add("resourceVersion", oneOf(w.seeded.middle, w.seeded.end))
		add("resourceVersionMatch", "NotOlderThan")
	case 4:
		if r.exact = random.IntN(4) == 0 && r.pages; r.exact { // a limit makes it exact
			add("resourceVersion", oneOf(w.seeded.middle, w.seeded.end))
		}
	}
	accept := oneOf(inJSON, inJSON, inJSON, inProtobuf, inProtobuf, asTable, asPartial, strings.Replace(asPartial, "json", "vnd.kubernetes.protobuf", 1))
	if random.IntN(6) == 0 && !strings.Contains(accept, "as=") { // which a view does not indent
		add("pretty", "true")
	}
	if random.IntN(16) == 0 {
		query = append(query, "shardSelector=") // the first one counts
	}
	random.Shuffle(len(query), func(i, j int) { query[i], query[j] = query[j], query[i] })
	r.request = cluster.Get(r.of.path(namespace)+"?"+strings.Join(query, "&")).With("Accept", accept)
	if random.IntN(4) == 0 {
		r.request = r.request.With("Accept-Encoding", "gzip")
	}
	return r
}

// sameState is the rule for bodies of lists. They may show different resourceVersions of the same
// state. The keys in tokens of the apiserver's cache begin with a slash, others do not.
func sameState(body []byte) ([]byte, error) {
	if len(body) == 0 { // a watch, whose events are not compared here
		return nil, nil
	}
	open, err := conformance.SomeState(0)(body)
	return bytes.Replace(open, []byte(`"start":"/`), []byte(`"start":"`), 1), err
}

// pagesOf reads all pages of a list, up to the first answer that is not one.
func pagesOf(ctx context.Context, e *cluster.Endpoint, r cluster.Request) (all []cluster.Answer, err error) {
	first := r.Target
	for {
		a, err := patient(ctx, e, r)
		if err != nil {
			return nil, err
		}
		token, err := tokenIn(a)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Target, err)
		}
		if all = append(all, a); token == "" {
			return all, nil
		}
		// A token must come without a resourceVersion.
		path, query, _ := strings.Cut(first, "?")
		r.Target = path + "?continue=" + url.QueryEscape(token)
		for p := range strings.SplitSeq(query, "&") {
			if !strings.HasPrefix(p, "resourceVersion") {
				r.Target += "&" + p
			}
		}
	}
}

// plain returns the decompressed body of an answer.
func plain(a cluster.Answer) ([]byte, error) {
	if a.Header.Get("Content-Encoding") != "gzip" {
		return a.Body, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(a.Body))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// tokenIn returns the continue token of a list.
func tokenIn(a cluster.Answer) (string, error) {
	body, err := plain(a)
	if err != nil || a.Status != http.StatusOK {
		return "", err
	}
	if !strings.HasPrefix(a.Header.Get("Content-Type"), "application/vnd.kubernetes.protobuf") {
		return gjson.GetBytes(body, "metadata.continue").Str, nil
	}
	envelope, err := conformance.OpenEnvelope(body)
	if err != nil {
		return "", err
	}
	var list metav1.PartialObjectMetadataList // other lists have their metadata at the same place
	err = list.Unmarshal(envelope.Raw)
	return list.Continue, err
}

// TestReads is not parallel to other tests, so that nothing changes meanwhile.
func TestReads(t *testing.T) {
	w := sharedWorld(t)
	w.settle(t)
	const reads, atOnce = 300, 8
	var sources tally
	var selected, refused counter
	err := workload.Parallel(t.Context(), reads, atOnce, func(ctx context.Context, i int) error {
		r := w.drawRead(rand.New(rand.NewPCG(cluster.Seed(), uint64(i)))) //nolint:gosec // small
		return w.compareReads(ctx, t, r, &sources, &selected, &refused)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d lists are shorter than without a selector; %d answers refused what the cache does not have", selected.n, refused.n)
	if selected.n < reads/3 || refused.n > reads/10 {
		t.Error("the test does not test")
	}
	sources.check(t)
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += n
}

// compareReads sends a list each way, and compares the answers with the references'.
func (w *world) compareReads(ctx context.Context, t *testing.T, r read, sources *tally, selected, refused *counter) error {
	t.Helper()
	var sizes []int
	wants := map[*cluster.Endpoint][]cluster.Answer{}
	for _, of := range []*cluster.Endpoint{w.on.api, w.off.api} {
		want, err := pagesOf(ctx, of, as(direct, r.request))
		if err != nil {
			return err
		}
		if wants[of] = want; want[0].Status != http.StatusOK {
			t.Errorf("%s: %s: %d %.300s", of.Name, r, want[0].Status, want[0].Body)
		}
		size := 0
		for _, page := range want {
			size += len(page.Body)
		}
		sizes = append(sizes, size)
	}
	if sizes[0] < sizes[1] {
		selected.add(1)
	}
	for _, y := range w.ways() {
		got, err := pagesOf(ctx, y.to.proxy, y.request(r.request))
		if err != nil {
			return fmt.Errorf("%s: %w", y.name, err)
		}
		for i, page := range got {
			sources.add(y, page.Header, fmt.Sprintf("page %d of %s", i, r), !r.exact && i == 0)
		}
		if last := got[len(got)-1]; y.view != "" && r.mayBeRefused(last) {
			refused.add(1)
			continue
		}
		if err := samePages(wants[y.reference], got); err != nil {
			t.Errorf("%s: %s: %v", y.name, r, err)
		}
	}
	return nil
}

// mayBeRefused reports whether an answer says that the cache does not have a state, or that it leaves
// exact lists of one object to upstream, which is not asked.
func (r read) mayBeRefused(a cluster.Answer) bool {
	switch a.Status {
	case http.StatusGone, http.StatusServiceUnavailable:
		return r.exact || r.pages
	case http.StatusBadRequest:
		return r.exact && r.one
	}
	return false
}

func samePages(want, got []cluster.Answer) error {
	for i := range min(len(want), len(got)) {
		if err := conformance.Compare(want[i], got[i], sameState); err != nil {
			return fmt.Errorf("page %d: %w", i, err)
		}
	}
	if len(want) != len(got) {
		return fmt.Errorf("%d pages instead of %d", len(got), len(want))
	}
	return nil
}
