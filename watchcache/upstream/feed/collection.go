package feed

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/discovery"
)

// Collection is what a feed caches: the objects of a resource within a scope, in one encoding. All
// parts of the feed share it.
type Collection struct {
	Key
	Owner      Owner // zero if the ledger does not cover the resource
	Aggregated bool  // an aggregated API may serve the resource
	Shared     *Shared
	Log        *zap.Logger
	Described  discovery.Description // how upstream serves it; set when the feed starts
}

func newCollection(u *Shared, key Key) *Collection {
	resource := key.GVR.GroupResource()
	c := &Collection{
		Key:        key,
		Aggregated: u.Options.Load().Resources[resource].Aggregated,
		Shared:     u,
		Log:        u.Log.With(zap.Inline(key)),
	}
	// An aggregated API may show another resource's objects. A scope shows some of the writes only.
	if !c.Aggregated && key.Scope.Whole() {
		c.Owner = OwnerOf(resource)
	}
	return c
}

func (c *Collection) describe(
	ctx context.Context, since time.Time, heard *atomic.Int64,
) (is discovery.Description, at uint64, err error) {
	return c.Shared.Names.Describe(ctx, discovery.Question{
		GVR:        c.GVR,
		Encoding:   c.Encoding,
		Scope:      c.Scope,
		Aggregated: c.Aggregated,
		Since:      since,
		Heard:      heard,
	})
}

// Key identifies a feed.
type Key struct {
	GVR      schema.GroupVersionResource
	Encoding object.Encoding
	Scope    object.Scope
}

// Sorted returns the parts of a key in sort order: group, version, resource, encoding, scope.
func (k Key) Sorted() []string {
	r := k.GVR
	return []string{r.Group, r.Version, r.Resource, k.Encoding.String(), k.Scope.String()}
}

// String names the feed.
func (k Key) String() string {
	name := fmt.Sprintf("%s feed of %s", k.Encoding, k.GVR)
	if !k.Scope.Whole() {
		name += " in " + k.Scope.String()
	}
	return name
}

// MarshalLogObject implements zapcore.ObjectMarshaler.
func (k Key) MarshalLogObject(line zapcore.ObjectEncoder) error {
	line.AddString("group", k.GVR.Group)
	line.AddString("version", k.GVR.Version)
	line.AddString("resource", k.GVR.Resource)
	line.AddString("encoding", k.Encoding.String())
	if !k.Scope.Whole() {
		line.AddString("scope", k.Scope.String())
	}
	return nil
}

// Clone returns a key that shares no memory with k.
func (k Key) Clone() Key {
	r, s := &k.GVR, &k.Scope
	r.Group, r.Version = strings.Clone(r.Group), strings.Clone(r.Version)
	r.Resource, s.Namespace = strings.Clone(r.Resource), strings.Clone(s.Namespace)
	s.Fields, s.Labels = strings.Clone(s.Fields), strings.Clone(s.Labels)
	return k
}
