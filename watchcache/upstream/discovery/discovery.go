package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// ErrNotCacheable means that a resource can never be cached. Requests for it are forwarded.
var ErrNotCacheable = errors.New("resource cannot be cached")

// ErrNotServed means that upstream does not serve the resource now. This can change at any time,
// for example when a CRD is created.
var ErrNotServed = errors.New("upstream does not serve the resource")

func notCacheable(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, slices.Insert(args, 0, any(ErrNotCacheable))...)
}

const (
	// AskedAgain is how long a discovery document that lacks a resource is used before it is read
	// again. Until then, requests for a new resource are forwarded.
	AskedAgain = 2 * time.Second
	// Max is the maximum number of documents that are read concurrently.
	Max = 4
	// Timeout limits the read of one document, including the wait for other reads.
	Timeout = 10 * time.Second
	// nameMost is the maximum length of the name of a group, a version or a resource.
	nameMost = 253
)

// Discovery is upstream's discovery: the list of groups, and a list of resources for each group and
// version that clients request. At most one read of each document is in flight, and all callers
// share its result.
//
// Clients can invent names. Upstream still gets at most one request per document within AskedAgain.
// The proxy does not keep invented names, because it keeps only the documents of groups and
// versions that upstream has listed.
type Discovery struct {
	client  *client.Client
	log     *zap.Logger
	ctx     context.Context // ends with the feeds
	running *sync.WaitGroup
	places  chan struct{}
	unseen  sync.Once // for the warning that APIServices are unreadable

	Mu struct {
		sync.Mutex
		Documents map[schema.GroupVersion]*document // the list of groups has the zero key
	}
}

// document is a discovery document. All fields except began are set when done is closed.
type document struct {
	began     time.Time // start of the request; the content is not older
	done      chan struct{}
	versions  map[schema.GroupVersion]struct{} // set in the list of groups
	resources []metav1.APIResource             // set in all other documents
	err       error
}

// New returns a Discovery. wg counts the goroutines of its requests.
func New(ctx context.Context, c *client.Client, wg *sync.WaitGroup, log *zap.Logger) *Discovery {
	d := &Discovery{
		client:  c,
		log:     log,
		ctx:     ctx,
		running: wg,
		places:  make(chan struct{}, Max),
	}
	d.Mu.Documents = map[schema.GroupVersion]*document{}
	return d
}

// Serves returns an error unless upstream's recent discovery lists a resource.
func (d *Discovery) Serves(ctx context.Context, gvr schema.GroupVersionResource) error {
	_, err := d.find(ctx, gvr, time.Now().Add(-AskedAgain))
	return err
}

// Lacks reports, without waiting, whether a resource is missing from upstream's recent discovery.
func (d *Discovery) Lacks(gvr schema.GroupVersionResource) bool {
	if !plausible(gvr) {
		return true
	}
	d.Mu.Lock()
	defer d.Mu.Unlock()
	since := time.Now().Add(-AskedAgain)
	gv, groups := gvr.GroupVersion(), d.Mu.Documents[schema.GroupVersion{}]
	if gv.Group != "" && groups.succeeded(since) && !groups.lists(gv) {
		return true
	}
	doc := d.Mu.Documents[gv]
	return doc.succeeded(since) && doc.resource(gvr.Resource) == nil
}

// Namespaced reports whether a resource has namespaces. It uses documents of any age.
func (d *Discovery) Namespaced(ctx context.Context, gvr schema.GroupVersionResource) (bool, error) {
	d.Mu.Lock()
	doc := d.Mu.Documents[gvr.GroupVersion()]
	d.Mu.Unlock()
	if doc.succeeded(time.Time{}) {
		if found := doc.resource(gvr.Resource); found != nil {
			return found.Namespaced, nil
		}
	}
	found, err := d.find(ctx, gvr, time.Now().Add(-AskedAgain))
	if err != nil {
		return false, err
	}
	return found.Namespaced, nil
}

// find returns upstream's entry for a resource. The entry comes from a document that was requested
// at since or later.
func (d *Discovery) find(
	ctx context.Context, gvr schema.GroupVersionResource, since time.Time,
) (*metav1.APIResource, error) {
	if !plausible(gvr) {
		return nil, fmt.Errorf("%w: no resource has such a name", ErrNotServed)
	}
	gv := gvr.GroupVersion()
	if gv.Group != "" {
		groups, err := d.groups(ctx)
		if err != nil {
			return nil, err
		}
		if !groups.lists(gv) {
			return nil, fmt.Errorf("%w: %s", ErrNotServed, gvr)
		}
	}
	doc, err := d.read(ctx, gv, since)
	if err != nil {
		return nil, err
	}
	found := doc.resource(gvr.Resource)
	if found == nil {
		return nil, fmt.Errorf("%w: %s", ErrNotServed, gvr)
	}
	return found, nil
}

func (d *Discovery) groups(ctx context.Context) (*document, error) {
	return d.read(ctx, schema.GroupVersion{}, time.Now().Add(-AskedAgain))
}

// read returns a document that was requested at since or later, or the error of that request.
// Errors are cached for a while, too.
func (d *Discovery) read(
	ctx context.Context, gv schema.GroupVersion, since time.Time,
) (*document, error) {
	for {
		doc := d.present(gv, since)
		select {
		case <-doc.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: discover %s: %w", watchcache.ErrNotReady, gv, ctx.Err())
		}
		if doc.isRecent(since) {
			return doc, doc.err
		}
	}
}

// present returns the known document if it is recent enough or in flight, or requests a new one.
func (d *Discovery) present(gv schema.GroupVersion, since time.Time) *document {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	last := d.Mu.Documents[gv]
	if last != nil && (!last.over() || last.isRecent(since)) {
		return last
	}
	doc := &document{began: time.Now(), done: make(chan struct{})}
	// Otherwise the names would keep the request's memory alive.
	gv.Group, gv.Version = strings.Clone(gv.Group), strings.Clone(gv.Version)
	d.Mu.Documents[gv] = doc
	d.running.Go(func() {
		defer close(doc.done)
		doc.err = d.fetch(gv, doc)
		if doc.err != nil && (last == nil || last.err == nil) && d.ctx.Err() == nil {
			d.log.Warn("discovery failed; uncached resources are forwarded",
				zap.Stringer("groupVersion", gv), zap.Error(doc.err))
		}
	})
	return doc
}

func (d *Discovery) fetch(gv schema.GroupVersion, doc *document) error {
	ctx, cancel := context.WithTimeout(d.ctx, Timeout)
	defer cancel()
	select {
	case d.places <- struct{}{}:
		defer func() { <-d.places }()
	case <-ctx.Done():
		return fmt.Errorf("discover %s: %w", gv, ctx.Err())
	}
	if gv == (schema.GroupVersion{}) {
		return d.fetchGroups(ctx, doc)
	}
	var list metav1.APIResourceList
	none := gv.WithResource("")
	path := strings.TrimSuffix(client.ResourcePath(none, ""), "/")
	err := d.client.Read(ctx, none, path, &list)
	doc.resources = list.APIResources
	return err
}

// fetchGroups reads the list of groups and drops the documents of removed groups.
func (d *Discovery) fetchGroups(ctx context.Context, doc *document) error {
	var list metav1.APIGroupList
	if err := d.client.Read(ctx, schema.GroupVersionResource{}, "/apis", &list); err != nil {
		return err
	}
	doc.versions = map[schema.GroupVersion]struct{}{}
	for _, group := range list.Groups {
		for _, v := range group.Versions {
			doc.versions[schema.GroupVersion{Group: group.Name, Version: v.Version}] = struct{}{}
		}
	}
	d.Mu.Lock()
	defer d.Mu.Unlock()
	maps.DeleteFunc(d.Mu.Documents, func(gv schema.GroupVersion, _ *document) bool {
		return gv.Group != "" && !doc.lists(gv)
	})
	return nil
}

func (doc *document) over() bool {
	select {
	case <-doc.done:
		return true
	default:
		return false
	}
}

// isRecent reports whether the document was requested at since or later, or has a recent error.
func (doc *document) isRecent(since time.Time) bool {
	return !doc.began.Before(since) || doc.err != nil && time.Since(doc.began) < AskedAgain
}

// succeeded reports whether the document was requested at since or later and read successfully.
func (doc *document) succeeded(since time.Time) bool {
	return doc != nil && doc.over() && doc.err == nil && !doc.began.Before(since)
}

func (doc *document) lists(gv schema.GroupVersion) bool {
	_, ok := doc.versions[gv]
	return ok
}

func (doc *document) resource(name string) *metav1.APIResource {
	i := slices.IndexFunc(doc.resources, func(r metav1.APIResource) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &doc.resources[i]
}

// plausible reports whether a resource with this name can exist. The core group has its own rule,
// because it has one version and is not in the list of groups.
func plausible(gvr schema.GroupVersionResource) bool {
	if gvr.Group == "" && gvr.Version != "v1" || gvr.Version == "" || gvr.Resource == "" {
		return false
	}
	const allowed = "abcdefghijklmnopqrstuvwxyz0123456789-."
	for _, name := range []string{gvr.Group, gvr.Version, gvr.Resource} {
		if len(name) > nameMost || strings.Trim(name, allowed) != "" {
			return false
		}
	}
	return true
}
