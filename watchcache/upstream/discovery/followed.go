package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

// Followed is a collection on which upstream's responses for other resources depend: the
// definitions of custom resources, or the APIServices. V is what matters of an object, read from
// its JSON. The zero V means that there is no object.
type Followed[V comparable] struct {
	Begin sync.Once // of Run

	client               *client.Client
	health               *client.Health
	log                  *zap.Logger
	resource             schema.GroupVersionResource
	acceptAll, acceptOne string // the forms of a list and of a watch

	mu struct {
		sync.Mutex
		known     map[string]V
		following bool // known contains all objects
	}
}

// Change is a change of an object's value.
type Change[V any] struct {
	Name     string
	Was, Now V
}

// Definitions follows the metadata of all CustomResourceDefinitions. The schemas are not read,
// because they can be large, and the proxy only needs to detect changes.
//
// When a definition changes, upstream ends the watches of its resources cleanly, at any time after
// the change. For some 100 ms it responds with 429. Then it serves the same objects at the same
// resourceVersions with different bytes. So a feed is abandoned as soon as the change is seen. If a
// watch of a custom resource ends early, the feed relists and compares bytes.
func Definitions(c *client.Client, h *client.Health, log *zap.Logger) *Followed[Version] {
	return &Followed[Version]{
		client: c, health: h, log: log,
		resource:  definitionResource,
		acceptAll: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
		acceptOne: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
	}
}

// Services follows the APIServices. When an API moves to another server, upstream's open watches of
// the old server's objects stay open and silent, but new requests go to the new server.
func Services(c *client.Client, h *client.Health, log *zap.Logger) *Followed[Server] {
	return &Followed[Server]{
		client: c, health: h, log: log,
		resource:  apiservices,
		acceptAll: "application/json",
		acceptOne: "application/json",
	}
}

// Known returns an object's value. It returns false while not all objects are known, and if the
// object does not exist.
func (f *Followed[V]) Known(name string) (now V, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.following {
		now, ok = f.mu.known[name]
	}
	return now, ok
}

// Run follows the collection until ctx ends, and calls changed for each change. If upstream forbids
// this, Run tries again later. Until then, a feed detects a change only by the end of its watch, or
// by its self-check.
func (f *Followed[V]) Run(ctx context.Context, changed func(Change[V])) {
	again := client.NewRetry(f.health)
	wasRefused := false
	for {
		// It takes no turn, because cached custom resources may be wrong while the definitions and
		// the APIServices are unknown.
		if f.health.Wait(ctx) != nil {
			return
		}
		began := time.Now()
		err := f.follow(ctx, changed)
		if ctx.Err() != nil {
			return
		}
		f.setFollowing(false)
		refused := apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
		if err != nil && !apierrors.IsResourceExpired(err) {
			level := zap.WarnLevel
			if apierrors.IsNotFound(err) || refused && wasRefused {
				level = zap.DebugLevel
			}
			f.log.Log(level, "following "+f.resource.Resource+" broke", zap.Error(err))
		}
		if wasRefused = refused; refused && !client.Sleep(ctx, refusedPause) {
			return
		}
		if !again.After(ctx, time.Since(began), err) {
			return
		}
	}
}

// refusedPause is the pause after upstream forbade the list, or had no such resource.
const refusedPause = time.Minute

func (f *Followed[V]) setFollowing(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.following = on
}

func (f *Followed[V]) follow(ctx context.Context, changed func(Change[V])) error {
	var list struct {
		Metadata metav1.ListMeta
		Items    []json.RawMessage
	}
	const verb, slack = "definitions", 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, followedLife+slack)
	defer cancel()
	get := client.Get{
		Verb: verb, GVR: f.resource, Path: client.ResourcePath(f.resource, ""), Accept: f.acceptAll,
	}
	resp, err := f.client.Send(ctx, get)
	if err != nil {
		return err
	}
	err = json.NewDecoder(resp.Body).Decode(&list)
	_ = resp.Body.Close() // read to its end, or broken
	if err == nil {
		err = f.replace(list.Items, changed)
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", f.resource.Resource, err)
	}

	get.Accept, get.Query = f.acceptOne, url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"},
		"resourceVersion": {list.Metadata.ResourceVersion},
		"timeoutSeconds":  {strconv.Itoa(int(followedLife.Seconds()))},
	}
	resp, err = f.client.Send(ctx, get)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end, or broken
	s := client.NewJSONStream(resp.Body)
	for {
		e, err := s.Next()
		if err != nil {
			return client.Ended(err, false)
		}
		c, err := f.apply(e)
		if err != nil {
			return err
		}
		if c.Was != c.Now {
			changed(c)
		}
	}
}

// followedLife is the timeout of a watch. A silent watch is not trusted longer, even if upstream
// does not end it.
const followedLife = 5 * time.Minute

func (f *Followed[V]) apply(e client.Event) (c Change[V], err error) {
	switch e.Kind {
	case "BOOKMARK":
		return c, nil
	case "ERROR":
		return c, client.EventError(e, object.JSON)
	}
	name, now, err := f.read(e.Object)
	if err != nil {
		return c, err
	}
	if e.Kind == "DELETED" {
		now = *new(V)
	}
	return f.set(name, now), nil
}

func (f *Followed[V]) read(object []byte) (name string, now V, err error) {
	err = json.Unmarshal(object, &now)
	name = gjson.GetBytes(object, "metadata.name").Str
	if err != nil || name == "" {
		err = errors.Join(errors.New("object without metadata"), err)
	}
	return name, now, err
}

func (f *Followed[V]) set(name string, now V) Change[V] {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.mu.known[name]
	if now == *new(V) {
		delete(f.mu.known, name)
	} else {
		f.mu.known[name] = now
	}
	return Change[V]{name, was, now}
}

func (f *Followed[V]) replace(items []json.RawMessage, changed func(Change[V])) error {
	f.mu.Lock()
	gone := maps.Clone(f.mu.known)
	if f.mu.known == nil {
		f.mu.known = map[string]V{}
	}
	f.mu.Unlock()
	for _, item := range items {
		name, now, err := f.read(item)
		if err != nil {
			return err
		}
		delete(gone, name)
		if c := f.set(name, now); c.Was != now {
			changed(c)
		}
	}
	for name := range gone {
		changed(f.set(name, *new(V)))
	}
	f.setFollowing(true)
	return nil
}
