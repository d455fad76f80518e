// Package sharding finds out what upstream does with shard selectors (KEP-5866). They are behind a
// feature gate, and an apiserver without it ignores them. No document of the API tells whether a
// gate is on, so the package lists one object of all shards.
package sharding

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

const (
	// ttl is how long an answer counts. It changes only when an apiserver is started with other
	// feature gates.
	ttl = time.Minute
	// failedTTL is the time between a question that shows nothing and the next one.
	failedTTL = 5 * time.Second
	// patience limits the time of a question.
	patience = 2 * time.Second
)

// Answers are upstream's. The zero value has none.
type Answers struct {
	all sync.Map // of *answer, by schema.GroupVersionResource
}

// answer is upstream's for one resource.
type answer struct {
	turn  chan struct{} // contains the turn to ask
	is    atomic.Int32  // an object.Sharding; Unknown before the first answer
	until atomic.Int64  // when the answer ceases to count, as a watchcache.Moment
}

// Of returns what upstream does with shard selectors. If the last answer no longer counts, one
// caller asks upstream, and the others wait for it. If upstream fails, the old answer stays.
//
// A feature gate is that of a whole apiserver, so namespaces show it for all resources: they are
// never empty. If the proxy may not list them, the resource itself is asked.
func (s *Answers) Of(ctx context.Context, c *client.Client, r *object.Resource) object.Sharding {
	if is := s.of(ctx, c, namespaces); is != object.ShardingUnknown {
		return is
	}
	return s.of(ctx, c, r)
}

var namespaces = &object.Resource{GVR: client.Namespaces}

func (s *Answers) of(ctx context.Context, c *client.Client, r *object.Resource) object.Sharding {
	kept, ok := s.all.Load(r.GVR)
	if !ok {
		a := &answer{turn: make(chan struct{}, 1)}
		a.turn <- struct{}{}
		kept, _ = s.all.LoadOrStore(r.GVR, a)
	}
	a := kept.(*answer)
	if !a.counts() && a.takeTurn(ctx) {
		if !a.counts() { // nobody else has asked in between
			a.ask(ctx, c, r)
		}
		a.turn <- struct{}{}
	}
	return object.Sharding(a.is.Load())
}

// takeTurn waits for the turn to ask. It does not wait if there is an old answer.
func (a *answer) takeTurn(ctx context.Context) bool {
	if a.is.Load() != int32(object.ShardingUnknown) {
		select {
		case <-a.turn:
			return true
		default:
			return false
		}
	}
	select {
	case <-a.turn:
		return true
	case <-ctx.Done():
		return false
	}
}

func (a *answer) counts() bool { return watchcache.Moment(time.Now()) < a.until.Load() }

func (a *answer) ask(ctx context.Context, c *client.Client, r *object.Resource) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	is, err := ask(limited, c, r)
	counts := ttl
	switch {
	case is != object.ShardingUnknown:
		a.is.Store(int32(is))
	case ctx.Err() != nil:
		return // the caller gave up, and the next one asks
	case !apierrors.IsForbidden(err):
		counts = failedTTL
	}
	a.until.Store(watchcache.Moment(time.Now().Add(counts)))
}

// ask lists one object of all shards. Lists of custom resources have no shardInfo. So it then lists
// one object of a shard that has none, at the same resourceVersion.
func ask(ctx context.Context, c *client.Client, r *object.Resource) (object.Sharding, error) {
	const all, none = "0x10000000000000000", "0x0000000000000001"
	list, err := listOne(ctx, c, r, all, url.Values{})
	meta := list.Get("metadata")
	switch {
	case err != nil:
		return object.ShardingUnknown, err
	case meta.Get("shardInfo").Exists():
	case isEmpty(list):
		return object.ShardingUnknown, nil
	case !r.SelfDescribing:
		return object.ShardingIgnored, nil
	default:
		at := url.Values{"resourceVersion": {meta.Get("resourceVersion").Str}, "resourceVersionMatch": {"Exact"}}
		other, err := listOne(ctx, c, r, none, at)
		if err != nil {
			return object.ShardingUnknown, err
		}
		if !isEmpty(other) {
			return object.ShardingIgnored, nil
		}
	}
	// Kube-apiserver 1.36 counts the remaining objects of all shards.
	if meta.Get("continue").Str == "" || meta.Get("remainingItemCount").Exists() || r.Scope.Selects() {
		return object.ShardingWithoutPages, nil
	}
	return object.ShardingWithPages, nil
}

func isEmpty(list gjson.Result) bool { return len(list.Get("items").Array()) == 0 }

// most is the largest list of one object that is read, in bytes.
const most = 4 << 20

// listOne lists one object whose UID has a hash below end.
func listOne(ctx context.Context, c *client.Client, r *object.Resource, end string, query url.Values) (list gjson.Result, err error) {
	query.Set("limit", "1")
	query.Set("shardSelector", "shardRange(object.metadata.uid, '0x0000000000000000', '"+end+"')")
	resp, err := c.GetCollection(ctx, client.MimeJSON, "discover", r, query)
	if err != nil {
		return list, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return list, fmt.Errorf("list one of %s: %w", r.GVR.Resource, err)
	}
	if list = gjson.ParseBytes(body); !gjson.ValidBytes(body) || !list.Get("items").Exists() {
		return list, fmt.Errorf("%w: list of one of %s", object.ErrMalformed, r.GVR.Resource)
	}
	return list, nil
}
