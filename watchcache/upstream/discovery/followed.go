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
// definitions of custom resources, or the APIServices. V is what matters of an object. The zero
// value means that there is no object.
type Followed[V comparable] struct {
	Client *client.Client
	Health *client.Health
	Log    *zap.Logger
	Begin  sync.Once

	resource             schema.GroupVersionResource
	acceptAll, acceptOne string // the forms of a list and of a watch
	parse                func(object []byte) (V, error)
	changed              func(name string, was, now V)

	mu struct {
		sync.Mutex
		known     map[string]V
		following bool // known contains all objects
	}
}

// Definitions follows the metadata of all CustomResourceDefinitions. The schemas are not read,
// because they can be large, and the proxy only needs to detect changes. After a change, the feeds
// of the custom resource end, as upstream's own watches do. Cached state from the old definition is
// not served any more.
//
// When a definition changes, upstream ends the watches of its resources cleanly, at any time after
// the change. For some 100 ms it responds with 429. Then it serves the same objects at the same
// resourceVersions with different bytes. So a feed is abandoned as soon as Definitions sees the
// change, and requests wait until upstream serves the new definition. If a watch of a custom
// resource ends early, the feed relists and compares bytes.
func Definitions(changed func(name string, was, now Version)) *Followed[Version] {
	return &Followed[Version]{
		resource: definitionResource, changed: changed,
		acceptAll: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
		acceptOne: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
		parse: func(object []byte) (Version, error) {
			var o metav1.PartialObjectMetadata
			err := json.Unmarshal(object, &o)
			return Version{o.UID, o.Generation}, err
		},
	}
}

// Services follows the APIServices. The value is the service that serves an API, or [Local]. When
// an API moves to another server, upstream's open watches of the old server's objects stay open and
// silent, but new requests go to the new server.
func Services(changed func(name, was, now string)) *Followed[string] {
	return &Followed[string]{
		resource: apiservices, changed: changed, acceptAll: "application/json", acceptOne: "application/json",
		parse: func(object []byte) (string, error) {
			var o apiService
			err := json.Unmarshal(object, &o)
			return o.server(), err
		},
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

// Run follows the collection until ctx ends. If upstream forbids this, Run tries again later. Until
// then, a feed detects a change only by the end of its watch, or by its self-check.
func (f *Followed[V]) Run(ctx context.Context) {
	again := client.NewRetry(f.Health)
	wasRefused := false
	for {
		// It takes no turn, because cached custom resources may be wrong while the definitions and
		// the APIServices are unknown.
		if f.Health.Wait(ctx) != nil {
			return
		}
		began := time.Now()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		f.setFollowing(false)
		expired, refused := apierrors.IsResourceExpired(err), apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
		if err != nil && !expired {
			level := zap.WarnLevel
			if apierrors.IsNotFound(err) || refused && wasRefused {
				level = zap.DebugLevel
			}
			f.Log.Log(level, "following "+f.resource.Resource+" broke", zap.Error(err))
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

// follow lists and watches until the watch ends.
func (f *Followed[V]) follow(ctx context.Context) error {
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
	resp, err := f.Client.Send(ctx, get)
	if err != nil {
		return err
	}
	err = json.NewDecoder(resp.Body).Decode(&list)
	_ = resp.Body.Close() // read to its end, or broken
	if err == nil {
		err = f.replace(list.Items)
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", f.resource.Resource, err)
	}

	get.Accept, get.Query = f.acceptOne, url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"},
		"resourceVersion": {list.Metadata.ResourceVersion},
		"timeoutSeconds":  {strconv.Itoa(int(followedLife.Seconds()))},
	}
	resp, err = f.Client.Send(ctx, get)
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
		if err := f.apply(e); err != nil {
			return err
		}
	}
}

// followedLife is the timeout of a watch. A silent watch is not trusted longer, even if upstream
// does not end it.
const followedLife = 5 * time.Minute

func (f *Followed[V]) apply(e client.Event) error {
	switch e.Kind {
	case "BOOKMARK":
		return nil
	case "ERROR":
		return client.EventError(e, object.JSON)
	}
	var none V
	name, now, err := f.read(e.Object)
	if err != nil {
		return err
	}
	if e.Kind == "DELETED" {
		now = none
	}
	f.set(name, now)
	return nil
}

func (f *Followed[V]) read(object []byte) (name string, now V, err error) {
	now, err = f.parse(object)
	if name = gjson.GetBytes(object, "metadata.name").Str; err != nil || name == "" {
		err = errors.Join(errors.New("object without metadata"), err)
	}
	return name, now, err
}

// set records a value and calls changed if it is new.
func (f *Followed[V]) set(name string, now V) {
	var none V
	f.mu.Lock()
	was := f.mu.known[name]
	if now == none {
		delete(f.mu.known, name)
	} else {
		f.mu.known[name] = now
	}
	f.mu.Unlock()
	if was != now {
		f.changed(name, was, now)
	}
}

// replace records all objects at once.
func (f *Followed[V]) replace(items []json.RawMessage) error {
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
		f.set(name, now)
	}
	var none V
	for name := range gone {
		f.set(name, none)
	}
	f.setFollowing(true)
	return nil
}
