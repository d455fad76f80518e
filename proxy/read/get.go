package read

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// get answers a get at resourceVersion 0 or N, or of a state within the resource's maxAge.
func (r *read) get(ctx context.Context) (*exchange.Response, error) {
	snapshot, err := r.fresh(ctx)
	if err != nil {
		return nil, err
	}
	key := r.resource.Key(r.Namespace, r.Name)
	o := snapshot.Get(key)
	if o == nil {
		return r.fail(exchange.StatusOf(apierrors.NewNotFound(r.GVR.GroupResource(), r.Name))), nil
	}
	size := int64(len(o.Bytes()))
	cut := r.choice.Fields != nil && !r.choice.Table // which is not longer
	if size > exchange.SmallBody && !r.form.Verbatim() && !cut {
		// Upstream has the object in other forms at hand, and the length is unknown.
		return nil, TooLarge
	}
	write := func() ([]byte, error) {
		body, err := r.form.AppendObject(make([]byte, 0, size+128), o)
		if err != nil {
			err = r.unwritable(err)
		}
		return body, err
	}
	switch {
	case size > exchange.SmallBody: // the client may leave a lot of memory unread
		most := size + exchange.SmallBody // the body may be a little longer than the object
		if r.compresses(size) {
			most *= gzipWork
		}
		return r.makeAnswer(most, func() (*exchange.Response, error) {
			body, err := write()
			if err != nil {
				return nil, err
			}
			return r.bytesAnswer(body)
		})
	case !r.form.Verbatim():
		if err := r.meter.Spend(r.cost() * size); err != nil {
			return nil, err
		}
	}
	body, err := write()
	switch {
	case err != nil:
		return nil, err
	case len(body) > 2*exchange.SmallBody: // a Table with long cells
		return nil, TooLarge
	}
	return r.bytesAnswer(body)
}
