package shards

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// more are parameters besides a bad selector.
var more = []string{
	"", "", "", "&limit=x", "&labelSelector=%3D%3D", "&fieldSelector=none%3D1", "&resourceVersion=x", "&resourceVersionMatch=Exact", "&continue=x",
	"&limit=5", "&sendInitialEvents=true", "&shardSelector=", "&pretty=true",
}

// Bad selectors are refused as upstream refuses them, together with other bad parameters, too.
func TestRefused(t *testing.T) {
	w := sharedWorld(t)
	w.settle(t)
	var texts []string
	random := rand.New(rand.NewPCG(cluster.Seed(), 1))
	const misspelled = 150
	for range misspelled {
		texts = append(texts, misspell(random, drawShard(random, w.seeded.uids["pods"], w.seeded.namespaces).text))
	}
	texts = append(texts, badSelectors...)
	var refused, changed counter
	const atOnce = 8
	err := workload.Parallel(t.Context(), len(texts), atOnce, func(ctx context.Context, i int) error {
		random := rand.New(rand.NewPCG(cluster.Seed(), uint64(i)<<32)) //nolint:gosec // small
		oneOf := func(all ...string) string { return all[random.IntN(len(all))] }
		target := resources[random.IntN(len(resources))].path(w.seeded.namespaces[0]) + "?shardSelector=" + url.QueryEscape(texts[i])
		also, accept := oneOf(more...), oneOf(inJSON, inJSON, inProtobuf, asTable, asPartial, inYAML)
		if also == "&pretty=true" { // a view indents nothing else
			accept = inJSON
		}
		watches := random.IntN(6) == 0
		if target += also; watches {
			target += "&watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=" + w.seeded.end
			accept = strings.Replace(accept, "MetadataList", "Metadata", 1)
		}
		request := cluster.Get(target).With("Accept", accept)
		wants := map[*cluster.Endpoint]cluster.Answer{}
		for _, of := range []*cluster.Endpoint{w.on.api, w.off.api} {
			want, err := beginning(ctx, of, as(direct, request))
			if err != nil {
				return err
			}
			wants[of] = want
		}
		if wants[w.on.api].Status == http.StatusInternalServerError {
			refused.add(1)
		}
		if wants[w.on.api].Status != wants[w.off.api].Status {
			changed.add(1)
		}
		for _, y := range w.ways() {
			got, err := beginning(ctx, y.to.proxy, y.request(request))
			if err != nil {
				return err
			}
			want := wants[y.reference]
			if y.view != "" && got.Status >= http.StatusBadRequest && (accept == inYAML || also != "" && (want.Status >= http.StatusBadRequest || watches)) {
				continue // the view may find another mistake first, and its cache answers no watch with a limit
			}
			if err := conformance.Compare(want, got, sameState); err != nil {
				t.Errorf("%s: %.1000q, %s (%s): %v", y.name, texts[i], also, accept, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d were refused because of their selector", refused.n, len(texts))
	if refused.n < len(texts)/3 || changed.n < len(texts)/3 {
		t.Error("these are too few: the test does not test")
	}
}

// beginning returns the answer to a request. Of a watch it returns only the header.
func beginning(ctx context.Context, e *cluster.Endpoint, r cluster.Request) (cluster.Answer, error) {
	if !strings.Contains(r.Target, "watch=") {
		return patient(ctx, e, r)
	}
	ctx, cancel := context.WithTimeout(ctx, cluster.Limit)
	defer cancel()
	resp, err := openPatiently(ctx, e, r)
	if err != nil {
		return cluster.Answer{}, err
	}
	defer resp.Body.Close()
	a := cluster.Answer{Status: resp.StatusCode, Header: resp.Header}
	if a.Status != http.StatusOK {
		a.Body, err = io.ReadAll(resp.Body)
	}
	return a, err
}
