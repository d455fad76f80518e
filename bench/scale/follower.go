package main

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// follower is the store of a reflector. It measures what the reflector reads, and keeps nothing.
type follower struct {
	r      *recorder
	kind   string
	began  time.Time // zero if it begins from a resourceVersion
	once   sync.Once
	synced chan struct{}
}

// follow runs a reflector until ctx ends. It begins from a resourceVersion, or with the state if
// that is empty.
func (c *crowd) follow(ctx context.Context, kind string, object runtime.Object, lw *cache.ListWatch, from string) *follower {
	f := &follower{r: c.r, kind: kind, synced: make(chan struct{})}
	if from == "" {
		f.began = time.Now()
	}
	reflector := cache.NewReflectorWithOptions(resume(lw, object, from), object, f, cache.ReflectorOptions{Name: kind})
	c.running.Go(func() { reflector.RunWithContext(ctx) })
	return f
}

func (f *follower) event(object any) error {
	o, err := meta.Accessor(object)
	if err == nil {
		f.r.event(o.GetResourceVersion())
	}
	return err
}

// Add implements cache.ReflectorStore.
func (f *follower) Add(object any) error { return f.event(object) }

// Update implements cache.ReflectorStore.
func (f *follower) Update(object any) error { return f.event(object) }

// Delete implements cache.ReflectorStore.
func (f *follower) Delete(object any) error { return f.event(object) }

// Replace implements cache.ReflectorStore. The first call ends the sync.
func (f *follower) Replace([]any, string) error {
	f.once.Do(func() {
		if !f.began.IsZero() {
			f.r.took("sync of "+f.kind, time.Since(f.began))
		}
		close(f.synced)
	})
	return nil
}

// Resync implements cache.ReflectorStore.
func (*follower) Resync() error { return nil }

// Transformer implements cache.TransformingStore: of a state that arrives, the reflector keeps one
// object, because this process would have hundreds of states in a storm.
func (*follower) Transformer() cache.TransformFunc {
	one := &metav1.PartialObjectMetadata{}
	return func(any) (any, error) { return one, nil }
}

// onlyNames drops all of an object but its name and version, because this process has the caches of
// thousands of programs.
func onlyNames(object any) (any, error) {
	o, ok := object.(metav1.Object)
	if !ok {
		return object, nil // a tombstone
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
	}}, nil
}

// selecting returns the ListerWatcher of the objects that a field selector matches; all if empty.
func selecting(client cache.Getter, resource, selector string) *cache.ListWatch {
	return cache.NewFilteredListWatchFromClient(client, resource, "", func(o *metav1.ListOptions) { o.FieldSelector = selector })
}

// resumed is a ListerWatcher whose first watch begins at a resourceVersion, as if it had the state.
type resumed struct {
	*cache.ListWatch
	once sync.Once
	end  watch.Event // of the initial events
	from string
}

func resume(lw *cache.ListWatch, object runtime.Object, from string) cache.ListerWatcher {
	if from == "" {
		return lw
	}
	o := object.(metav1.Object)
	o.SetResourceVersion(from)
	o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return &resumed{ListWatch: lw, from: from, end: watch.Event{Type: watch.Bookmark, Object: object}}
}

// WatchWithContext implements cache.ListerWatcherWithContext.
func (r *resumed) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	first := false
	r.once.Do(func() { first = true })
	if !first {
		return r.ListWatch.WatchWithContext(ctx, o)
	}
	o.ResourceVersion, o.ResourceVersionMatch, o.SendInitialEvents = r.from, "", nil
	w, err := r.ListWatch.WatchWithContext(ctx, o)
	if err != nil {
		return nil, err
	}
	events := make(chan watch.Event, 1)
	events <- r.end
	go func() { // until the reflector stops the watch
		defer close(events)
		for e := range w.ResultChan() {
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	return resumedWatch{w, events}, nil
}

type resumedWatch struct {
	watch.Interface
	events <-chan watch.Event
}

// ResultChan implements watch.Interface.
func (w resumedWatch) ResultChan() <-chan watch.Event { return w.events }
