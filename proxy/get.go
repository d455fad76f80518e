package proxy

import (
	"context"
)

// get answers a get at resourceVersion 0 or N.
func (r *read) get(ctx context.Context) (*response, error) {
	snapshot, err := r.fresh(ctx)
	if err != nil {
		return nil, err
	}
	o := snapshot.Get(r.resource.Key(r.namespace, r.name))
	if o == nil {
		return r.fail(statusResponse(notFound(r.route), fromCache)), nil
	}
	resp := r.respond()
	resp.bytes = append(r.form.AppendObject(make([]byte, 0, len(o.JSON())+128), o.JSON()), '\n')
	return resp, nil
}
