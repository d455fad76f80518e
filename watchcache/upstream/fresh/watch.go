package fresh

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
	"github.com/watchproxy/watchproxy/watchcache/upstream/feed"
	"github.com/watchproxy/watchproxy/watchcache/upstream/ledger"
	"github.com/watchproxy/watchproxy/watchcache/upstream/servers"
)

// ledgerBuffer is the read buffer of a watch, in bytes.
const ledgerBuffer = 4 << 10

// ledgerWatch is a metadata watch. Only the revisions of its events are kept.
type ledgerWatch struct {
	resource *object.Resource
	owner    ledger.Owner
	stop     context.CancelFunc
	over     chan struct{} // closed when the watch has ended; err is then set
	err      error
	lived    time.Duration // duration of the open watch
}

// fit opens missing watches and closes unneeded watches. It reports whether a watch has ended
// early.
func (k *Keeper) fit(ctx context.Context, resources []object.Resource) (early bool) {
	for o, w := range k.watches {
		select {
		case <-w.over:
			early = k.ended(w) || early
			delete(k.watches, o)
		default:
		}
	}
	fed := map[ledger.Owner]bool{}
	for _, f := range k.feeds() {
		if f.Cache().Stats().Ready {
			fed[f.Owner] = true
		}
	}
	wanted := map[ledger.Owner]bool{}
	for i := range resources {
		r := &resources[i]
		o := ledger.OwnerOf(r.GVR.GroupResource())
		scopes := k.Options.Load().ScopesOf(r.GVR.GroupResource())
		narrowed := len(scopes) > 0 && !slices.ContainsFunc(scopes, object.Scope.Whole)
		if fed[o] || narrowed || k.Options.Load().Excludes(r.GVR) {
			continue
		}
		wanted[o] = true
		if k.watches[o] != nil || time.Now().Before(k.pauses[o]) {
			continue
		}
		watching, stop := context.WithCancel(ctx)
		w := &ledgerWatch{resource: r, owner: o, stop: stop, over: make(chan struct{})}
		k.watches[o] = w
		k.running.Go(func() {
			defer close(w.over)
			w.lived, w.err = k.watch(watching, w)
		})
	}
	maps.DeleteFunc(k.pauses, func(_ ledger.Owner, until time.Time) bool { return time.Now().After(until) })
	for o, w := range k.watches {
		if !wanted[o] {
			w.stop()
			delete(k.watches, o)
		}
	}
	return early
}

// ended handles a watch that has ended by itself, and decides when the resource's next watch opens.
// It reports whether the watch ended early.
func (k *Keeper) ended(w *ledgerWatch) (early bool) {
	w.stop()
	opened := w.lived > 0
	if opened && w.err == nil && w.lived >= feed.WatchLife {
		return false
	}
	if opened {
		k.Ledger.Forget() // the next watch may come from a restored etcd
	}
	pause := 10 * Every
	if client.Answered(w.err) && !client.Doubtful(w.err) && !apierrors.IsTooManyRequests(w.err) && !apierrors.IsResourceExpired(w.err) {
		pause = rest
	}
	k.pauses[w.owner] = time.Now().Add(pause)
	k.Log.Debug("ledger watch ended", zap.Stringer("resource", w.resource.GVR), zap.Duration("again", pause), zap.Error(w.err))
	return opened
}

// watch follows one watch that starts at the present revision.
func (k *Keeper) watch(ctx context.Context, w *ledgerWatch) (lived time.Duration, err error) {
	c := k.Client
	end, err := k.Health.Turns.Wait(ctx, func() servers.Urgency { return servers.Urgency{} })
	if err != nil {
		return 0, err
	}
	defer end()
	if err := k.probes.Wait(ctx); err != nil {
		return 0, err
	}
	asking, cancel := context.WithTimeout(ctx, feed.AskTimeout)
	p, err := c.Probe(asking, ledgerVerb, w.resource)
	cancel()
	if err != nil {
		return 0, err
	}
	resp, err := c.GetCollection(ctx, AcceptMetadataEvents, ledgerVerb, w.resource, url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {strconv.FormatUint(p.RV, 10)},
	})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end, or does not matter
	end()
	opened := time.Now()
	err = k.read(client.NewProtoStream(resp.Body, &metadataOnly, ledgerBuffer), w.owner, p.RV)
	return max(time.Since(opened), 1), err
}

// read records the revisions that a watch shows until it ends. The watch starts at the revision
// from.
func (k *Keeper) read(s client.Stream, o ledger.Owner, from uint64) error {
	for used := (ledger.Uses{At: from}); ; {
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
		switch {
		case err != nil:
			return err
		case e.Kind == "BOOKMARK":
			used.Reached(rv)
		default:
			used.Event(rv)
			k.Uses(o, used.Take()...)
		}
	}
}

// ledgerVerb is the verb of the ledger's requests in metrics.
const ledgerVerb = "ledger"

// AcceptMetadataEvents requests watch events that contain only the metadata of objects.
const AcceptMetadataEvents = client.MimeProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// metadataOnly describes objects that are requested as metadata only.
var metadataOnly = object.Resource{
	GVR:  metav1.SchemeGroupVersion.WithResource("partialobjectmetadata"),
	Kind: "PartialObjectMetadata", Encoding: object.Protobuf, Namespaced: true,
}
