package fresh

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
)

const ledgerBuffer = 4 << 10

type ledgerWatch struct {
	resource *object.Resource
	stop     context.CancelFunc
	pausing  atomic.Bool // the watch has ended, and is not open again yet
}

func (k *Keeper) fit(ctx context.Context, resources []object.Resource) {
	fed := map[feed.Owner]bool{}
	for _, f := range k.feeds.Started() {
		if f.Cache().Stats().Ready {
			fed[f.Feed.Owner] = true
		}
	}
	wanted := map[feed.Owner]bool{}
	for i := range resources {
		r := &resources[i]
		o := feed.OwnerOf(r.GVR.GroupResource())
		scopes := k.shared.Options.Load().ScopesOf(r.GVR.GroupResource())
		narrowed := len(scopes) > 0 && !slices.ContainsFunc(scopes, object.Scope.Whole)
		if fed[o] || wanted[o] || narrowed || k.shared.Options.Load().Excludes(r.GVR) {
			continue
		}
		wanted[o] = true
		w := k.watches[o]
		if w != nil && w.resource.GVR == r.GVR {
			continue
		}
		if w != nil {
			w.stop()
		}
		watching, stop := context.WithCancel(ctx)
		w = &ledgerWatch{resource: r, stop: stop}
		k.watches[o] = w
		k.running.Go(func() { k.follow(watching, w) })
	}
	for o, w := range k.watches {
		if !wanted[o] {
			w.stop()
			delete(k.watches, o)
		}
	}
}

// reopen has the pauses before a broken watch opens again. They grow, because each break makes the
// ledger forget all. A watch that lives for longer than Needed clears them.
var reopen = wait.Backoff{
	Duration: 10 * Every,
	Factor:   2,
	Jitter:   0.5,
	Steps:    5,
	Cap:      Needed,
}

// follow opens one watch after the other until ctx ends. If a watch ends before its time, upstream
// may be restarting, and the next watch may come from a restored etcd.
func (k *Keeper) follow(ctx context.Context, w *ledgerWatch) {
	backoff := reopen
	for pause := time.Duration(0); client.Sleep(ctx, pause); {
		w.pausing.Store(false)
		// The lives differ, so that few watches end at one time.
		life := (feed.WatchLife + rand.N(feed.WatchLife)).Truncate(time.Second)
		lived, err := k.watch(ctx, w, life)
		pause = 0
		if ctx.Err() != nil || err == nil && lived > life-time.Second {
			continue
		}
		if lived > 0 {
			k.Ledger.Forget()
			k.moved.Store(true)
		}
		if lived > Needed {
			backoff = reopen
		}
		pause = backoff.Step()
		if refused(err) {
			pause = rest
		}
		w.pausing.Store(true)
		k.shared.Log.Debug("ledger watch ended", zap.Stringer("resource", w.resource.GVR),
			zap.Duration("again", pause), zap.Error(err))
	}
}

// refused reports whether upstream is likely to refuse the next watch, too.
func refused(err error) bool {
	return client.Answered(err) && !client.Doubtful(err) &&
		!apierrors.IsTooManyRequests(err) && !apierrors.IsResourceExpired(err)
}

// watch follows one watch that starts at the present revision, and that upstream ends after life.
// lived is 0 if it was not opened.
func (k *Keeper) watch(
	ctx context.Context, w *ledgerWatch, life time.Duration,
) (lived time.Duration, err error) {
	end, err := k.shared.Health.Turn(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	if err := k.probes.Wait(ctx); err != nil {
		return 0, err
	}
	asking, cancel := context.WithTimeout(ctx, feed.AskTimeout)
	p, err := k.shared.Client.Probe(asking, ledgerVerb, w.resource)
	cancel()
	if err != nil {
		return 0, err
	}
	query := url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"},
		"resourceVersion": {strconv.FormatUint(p.RV, 10)},
		"timeoutSeconds":  {strconv.Itoa(int(life.Seconds()))},
	}
	accept, c := AcceptMetadataEvents, k.shared.Client
	resp, err := c.GetCollection(ctx, accept, ledgerVerb, w.resource, query)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end, or does not matter
	end()
	opened := time.Now()
	events := client.NewProtoStream(resp.Body, &metadataOnly, ledgerBuffer)
	err = k.read(events, feed.OwnerOf(w.resource.GVR.GroupResource()), p.RV)
	return max(time.Since(opened), 1), err
}

// read records the revisions that a watch shows. The watch starts at the revision from.
func (k *Keeper) read(s client.Stream, o feed.Owner, from uint64) error {
	for highest := feed.Highest(from); ; {
		e, err := s.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case e.Kind == "ERROR":
			return client.EventError(e, object.Protobuf)
		}
		rv, err := object.ParseVersion(e.Object)
		if err != nil {
			return err
		}
		if highest.Reached(rv) && e.Kind != "BOOKMARK" {
			k.shared.Uses(o, rv)
		}
	}
}

const ledgerVerb = "ledger"

// AcceptMetadataEvents requests watch events that contain only the metadata of objects.
const AcceptMetadataEvents = client.MimeProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

var metadataOnly = object.Resource{
	GVR:  metav1.SchemeGroupVersion.WithResource("partialobjectmetadata"),
	Kind: "PartialObjectMetadata", Encoding: object.Protobuf, Namespaced: true,
}
