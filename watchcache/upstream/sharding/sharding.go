// Package sharding finds out what upstream does with shard selectors (KEP-5866). They are behind a
// feature gate, and an apiserver without it ignores them. No document of the API tells whether a
// gate is on, so the package lists one object of a shard.
package sharding

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

const (
	// ttl is how long an answer counts. It changes only when an apiserver is started with other
	// feature gates.
	ttl = time.Minute
	// unknownTTL is the same for an answer that shows nothing.
	unknownTTL = 5 * time.Second
	// patience limits the wait for a new answer while there is an old one.
	patience = time.Second
)

// Answers are upstream's, by resource. The zero value has none.
type Answers struct {
	asking  singleflight.Group
	answers sync.Map // of answer, by schema.GroupVersionResource
}

type answer struct {
	is    object.Sharding
	asked time.Time
}

func (a answer) counts() bool {
	if a.is == object.ShardingUnknown {
		return time.Since(a.asked) < unknownTTL
	}
	return time.Since(a.asked) < ttl
}

// Of returns what upstream does with shard selectors. It asks upstream if the last answer no longer
// counts. If upstream fails, an old answer counts on.
func (s *Answers) Of(ctx context.Context, c *client.Client, r *object.Resource) object.Sharding {
	remembered, known := s.answers.Load(r.GVR)
	last, _ := remembered.(answer)
	if known && last.counts() {
		return last.is
	}
	asked := s.asking.DoChan(r.GVR.String(), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), client.ProbeTimeout)
		defer cancel()
		began := time.Now()
		is, err := ask(ctx, c, r)
		if err == nil {
			s.answers.Store(r.GVR, answer{is, began})
		}
		return is, err
	})
	var tired <-chan time.Time
	if known {
		tired = time.After(patience)
	}
	select {
	case result := <-asked:
		if result.Err == nil {
			return result.Val.(object.Sharding)
		}
	case <-tired:
	case <-ctx.Done():
	}
	return last.is
}

// namespaces is a collection that is never empty.
var namespaces = &object.Resource{GVR: client.Namespaces}

// ask lists one object of all shards. If that does not show whether upstream knows shards, it lists
// one object of a shard that has none, at the same resourceVersion. Lists of custom resources have
// no shardInfo. If the collection is empty, namespaces show what their apiserver does.
func ask(ctx context.Context, c *client.Client, r *object.Resource) (object.Sharding, error) {
	const all, none = "0x10000000000000000", "0x0000000000000001"
	list, err := listOne(ctx, c, r, all, url.Values{})
	meta := list.Get("metadata")
	switch {
	case err != nil:
		return object.ShardingUnknown, err
	case meta.Get("shardInfo").Exists():
	case isEmpty(list) && r == namespaces:
		return object.ShardingUnknown, nil
	case isEmpty(list):
		is, err := ask(ctx, c, namespaces)
		if apierrors.IsForbidden(err) {
			err = nil
		}
		return is, err
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
