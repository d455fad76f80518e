package read

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// get answers a get at resourceVersion 0 or N, or of the most recent state at no cost upstream.
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
	body, err := r.form.AppendObject(make([]byte, 0, len(o.Bytes())+128), o)
	switch {
	case err != nil:
		return nil, r.unwritable(err)
	case r.choice.Pretty:
		return r.indented(body)
	case r.compresses(int64(len(body))):
		return r.compressedObject(snapshot, key, body)
	}
	resp := r.respond()
	resp.Bytes = body
	if len(body) <= exchange.SmallBody {
		return resp, nil
	} // otherwise the client may leave a lot of memory unread
	return r.workspaceAnswer(int64(len(body)), func() (*exchange.Response, error) { return resp, nil })
}

// compressedObject answers with a large object, which is compressed only once.
func (r *read) compressedObject(snapshot watchcache.Snapshot, key string, body []byte) (*exchange.Response, error) {
	for span := range snapshot.Spans(key, key+"\x00") {
		v := derived.Variant{Form: r.formID(), Gzip: true, Object: true, Cost: fair.GzipCost}
		if r.rows != nil { // the body is new
			v.Rows, v.Lasts = r.rows.Rules.ID, r.rows.Lasts
		}
		p, err := r.derived.Get(&r.meter, span, v, func() (_, plain []byte, err error) { return nil, body, nil })
		if err != nil {
			return nil, TooLarge
		}
		resp := r.respond()
		gzipped(resp)
		pieces, length := wire.Gzip([]*wire.Segment{p.Segment})
		resp.List, resp.Length = &derived.List{Pieces: pieces, Length: length}, length
		return resp, nil
	}
	return nil, TooLarge
}
