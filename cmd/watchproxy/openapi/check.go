// Package openapi checks the paths of views against upstream's discovery and OpenAPI documents.
//
// A path is right if objects of one of the view's resources can have the field, in one of the
// versions that upstream serves. Maps can have any key. Below fields without a schema, and below
// x-kubernetes-preserve-unknown-fields, each path is right. A view without resources is for objects
// of all kinds, so only its paths in metadata are checked. A custom resource may be missing,
// because the proxy must start even if its definition was removed.
package openapi

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/config/fieldpath"
)

const timeout = 10 * time.Second

// Check checks the resources and the paths of views. wrong contains all errors about them. unread
// says which documents could not be read, so that paths were not checked.
func Check(ctx context.Context, rc *rest.Config, views []config.View) (unread, wrong error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %s", timeout))
	defer cancel()
	docs, err := read(ctx, rc)
	if err != nil {
		return err, nil
	}
	var errs []error
	for i, v := range views {
		errs = append(errs, docs.check(ctx, fmt.Sprintf("views[%d]", i), v)...)
	}
	return utilerrors.NewAggregate(docs.unread), utilerrors.NewAggregate(errs)
}

// check returns the errors about a view. at is the path of the view in the configuration.
func (d *documents) check(ctx context.Context, at string, v config.View) (errs []error) {
	var kinds []kind
	for i, name := range v.Resources {
		of, err := d.kinds(ctx, name)
		switch group := schema.ParseGroupResource(name).Group; {
		case err == nil:
		case strings.Contains(group, "."): // its definition may come later
			d.unread = append(d.unread, fmt.Errorf("%s.resources[%d]: %w", at, i, err))
		default:
			errs = append(errs, fmt.Errorf("%s.resources[%d]: %w", at, i, err))
		}
		kinds = append(kinds, of...)
	}
	if len(v.Resources) == 0 { // the metadata of all kinds has the same fields
		kinds = []kind{d.kind(ctx, "an object", schema.GroupVersionKind{Version: "v1", Kind: "Pod"})}
	}
	for _, list := range []struct {
		name  string
		paths []string
	}{{"fields", v.Fields}, {"drop", v.Drop}} {
		for i, text := range list.paths {
			p, err := fieldpath.Parse(text)
			if err == nil && (len(v.Resources) > 0 || p[0].Key == "metadata") {
				err = find(kinds, p)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s.%s[%d]: %w", at, list.name, i, err))
			}
		}
	}
	return errs
}

// find returns an error if none of the kinds has a field. The error is about the kind that has most
// steps of the path.
func find(kinds []kind, p fieldpath.Path) error {
	var nearest error
	most, several := -1, false
	for _, k := range kinds {
		steps, err := k.follow(p)
		if err == nil {
			return nil
		}
		if steps > most {
			most, nearest = steps, err
		}
		several = several || k.resource != kinds[0].resource
	}
	if several {
		return fmt.Errorf("%w; the view's other resources have no such field, either", nearest)
	}
	return nearest
}
