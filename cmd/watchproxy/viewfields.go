package main

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/cmd/watchproxy/status"
	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/watchcache/object"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
	"github.com/watchproxy/watchproxy/watchcache/upstream/client"
)

const (
	fieldSample  = 500 // the most objects of a cache that a look reads
	lookInterval = time.Minute
)

// viewFields looks in filled caches for the fields of views that name their resources. If all of a
// view's resources have objects and no object has the field, its path may be wrong. It reads only
// JSON, because a wrong path cuts nothing from protobuf (see projection.Projection.Message).
type viewFields struct {
	wanted  []wantedField // found in no look; only look uses it
	log     *zap.Logger
	unfound atomic.Pointer[[]status.UnfoundField] // by the last look
}

type wantedField struct {
	status.UnfoundField
	path   config.Path
	logged bool
}

func newViewFields(views []config.View, log *zap.Logger) *viewFields {
	v := &viewFields{log: log}
	v.unfound.Store(new([]status.UnfoundField))
	for _, view := range views {
		for _, field := range slices.Concat(view.Fields, view.Drop) {
			path, err := config.ParsePath(field)
			kept := func(name string) bool {
				of, _ := config.ParsePath(name)
				return slices.Equal(of, path)
			}
			skip := err != nil || slices.ContainsFunc(config.KeptFields, kept)
			if !skip && len(view.Resources) > 0 {
				u := status.UnfoundField{View: view.Name, Field: field, Resources: view.Resources}
				v.wanted = append(v.wanted, wantedField{UnfoundField: u, path: path})
			}
		}
	}
	return v
}

func (v *viewFields) run(ctx context.Context, feeds func() []upstream.FeedStatus) {
	for len(v.wanted) > 0 && client.Sleep(ctx, lookInterval) {
		v.look(feeds())
	}
}

// look looks at a sample of each cache, and logs each field that no object has once.
func (v *viewFields) look(feeds []upstream.FeedStatus) {
	filled := map[string]bool{} // by resource
	for _, f := range feeds {
		state, err := f.Cache.Snapshot()
		if err != nil || f.Encoding != object.JSON {
			continue
		}
		resource := f.GVR.GroupResource().String()
		at, stride := 0, (state.Len()+fieldSample-1)/fieldSample
		for o := range state.Objects("", "") {
			if at%stride == 0 {
				filled[resource] = true
				text := unsafe.String(unsafe.SliceData(o.Bytes()), len(o.Bytes())) // not copied
				value := gjson.Parse(text)
				v.wanted = slices.DeleteFunc(v.wanted, func(w wantedField) bool {
					return slices.Contains(w.Resources, resource) && has(value, w.path)
				})
			}
			at++
		}
	}
	var unfound []status.UnfoundField
	for i := range v.wanted {
		w := &v.wanted[i]
		empty := func(resource string) bool { return !filled[resource] }
		if slices.ContainsFunc(w.Resources, empty) {
			continue
		}
		unfound = append(unfound, w.UnfoundField)
		if !w.logged {
			w.logged = true
			v.log.Warn("no object has a field of a view", zap.Any("field", w.UnfoundField))
		}
	}
	v.unfound.Store(&unfound)
}

func has(value gjson.Result, path config.Path) (found bool) {
	if len(path) == 0 {
		return true
	}
	if step := path[0]; step.Items && value.IsArray() || !step.Items && value.IsObject() {
		value.ForEach(func(key, below gjson.Result) bool {
			right := key.Str == step.Key // both are empty for items
			found = right && has(below, path[1:])
			return !found && (step.Items || !right)
		})
	}
	return found
}
