package faults

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// reader makes reads of the most recent state.
type reader struct {
	answered, failed int
	stale            []string
	seen             []sight
}

// sight is a list that was read.
type sight struct {
	rv    uint64
	state map[string]string // name to resourceVersion
}

const readLimit = 30 * time.Second

// run reads until ctx ends.
func (r *reader) run(ctx context.Context, s *cluster.Endpoint, w *writers) {
	for ctx.Err() == nil {
		floor := w.acked.Load()
		got, err := readList(ctx, s, w.of, w.namespace)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			r.failed++
			pause(ctx)
		default:
			if r.answered++; got.rv < floor {
				r.stale = append(r.stale, fmt.Sprintf("a list at %d lacks what was acknowledged at %d", got.rv, floor))
			}
			r.seen = append(r.seen, got)
		}
	}
}

func readList(ctx context.Context, s *cluster.Endpoint, of resource, namespace string) (got sight, err error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	body, err := body(ctx, s, of.list(namespace))
	if err != nil {
		return got, err
	}
	list := gjson.ParseBytes(body)
	if got.rv, err = strconv.ParseUint(list.Get("metadata.resourceVersion").Str, 10, 64); err != nil {
		return got, err
	}
	got.state = map[string]string{}
	note(got.state, body)
	return got, nil
}

// body reads the body of an answer with code 200.
func body(ctx context.Context, s *cluster.Endpoint, target string) ([]byte, error) {
	got, err := s.Ask(ctx, cluster.Get(target))
	if err == nil && got.Status != http.StatusOK {
		err = fmt.Errorf("%d: %.200s", got.Status, got.Body)
	}
	return got.Body, err
}

// bodyT is body, but fails the test on an error.
func bodyT(t *testing.T, s *cluster.Endpoint, target string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	b, err := body(ctx, s, target)
	cluster.MustT(t, err)
	return b
}

// note adds the objects of a list to seen, which maps names to resourceVersions, and counts them.
func note(seen map[string]string, list []byte) (n int) {
	gjson.GetBytes(list, "items").ForEach(func(_, item gjson.Result) bool {
		n++
		seen[strings.Clone(item.Get("metadata.name").Str)] = strings.Clone(item.Get("metadata.resourceVersion").Str)
		return true
	})
	return n
}
