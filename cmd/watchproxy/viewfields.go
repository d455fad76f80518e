package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/cmd/watchproxy/status"
	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/config/fieldpath"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

const (
	// fieldSample is the maximum number of objects of a cache that are looked at.
	fieldSample = 500
	// lookInterval is the time between two looks at the fields that were not found before.
	lookInterval = time.Minute
)

// viewFields looks for the fields of views in the first objects of filled caches. If none has a
// field, its path may be wrong. It is right if objects of one of the view's resources have it.
//
// Only JSON is looked at, because a wrong path is never shown in protobuf (see
// projection.Projection.Message).
type viewFields struct {
	views []config.View
	feeds func() []upstream.FeedStatus
	log   *zap.Logger
	mu    sync.Mutex
	found map[[2]string]bool // by view and field
	known map[[3]string]bool // what has been logged, by view, field and resource
}

func newViewFields(views []config.View, feeds func() []upstream.FeedStatus, log *zap.Logger) *viewFields {
	return &viewFields{views: views, feeds: feeds, log: log, found: map[[2]string]bool{}, known: map[[3]string]bool{}}
}

// run looks in each lookInterval until ctx ends.
func (v *viewFields) run(ctx context.Context) {
	for len(v.views) > 0 && client.Sleep(ctx, lookInterval) {
		v.look()
	}
}

// look returns the fields that no object has, and logs each once.
func (v *viewFields) look() (unfound []status.UnfoundField) {
	v.mu.Lock()
	defer v.mu.Unlock()
	feeds := v.feeds()
	for _, view := range v.views {
		for _, field := range slices.Concat(view.Fields, view.Drop) {
			if !v.found[[2]string{view.Name, field}] {
				unfound = append(unfound, v.lookLocked(feeds, view, field)...)
			}
		}
	}
	for _, u := range unfound {
		if key := [3]string{u.View, u.Field, u.Resource}; !v.known[key] {
			v.known[key] = true
			v.log.Warn("no object has a field of a view", zap.Any("field", u))
		}
	}
	return unfound
}

// lookLocked looks for a field in the caches of a view's resources.
func (v *viewFields) lookLocked(feeds []upstream.FeedStatus, view config.View, field string) (unfound []status.UnfoundField) {
	path, err := fieldpath.Parse(field)
	if err != nil || path[0].Key == "apiVersion" || path[0].Key == "kind" { // which all objects have
		return nil
	}
	for _, f := range feeds {
		resource := f.GVR.GroupResource().String()
		state, err := f.Cache.Snapshot()
		if err != nil || f.Encoding != object.JSON || len(view.Resources) > 0 && !slices.Contains(view.Resources, resource) {
			continue
		}
		objects := 0
		for o := range state.Objects("", "") {
			if has(gjson.ParseBytes(o.Bytes()), path) {
				v.found[[2]string{view.Name, field}] = true
				return nil
			}
			if objects++; objects == fieldSample {
				break
			}
		}
		at := slices.IndexFunc(unfound, func(u status.UnfoundField) bool { return u.Resource == resource })
		if at < 0 && objects > 0 {
			unfound = append(unfound, status.UnfoundField{View: view.Name, Field: field, Resource: resource, Objects: objects})
		}
	}
	return unfound
}

// has reports whether a value has a field.
func has(value gjson.Result, path fieldpath.Path) (found bool) {
	if len(path) == 0 {
		return true
	}
	if step := path[0]; step.Items && value.IsArray() || !step.Items && value.IsObject() {
		value.ForEach(func(key, below gjson.Result) bool {
			found = (step.Items || key.Str == step.Key) && has(below, path[1:])
			return !found
		})
	}
	return found
}
