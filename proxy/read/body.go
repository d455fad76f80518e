package read

import (
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// Peak memory to make a body, in bytes for each byte of the body.
const (
	gzipWork = 3
	cutWork  = 2
	// compressorSize is the size of a compressor, in bytes.
	compressorSize = 1536 << 10
)

func (r *reading) respond() *exchange.Response {
	resp := exchange.NewResponse(http.StatusOK, exchange.FromCache)
	resp.Header.Set("Content-Type", r.form.ContentType())
	r.Stamp(resp)
	return r.withAge(resp)
}

func (r *reading) fail(s metav1.Status) *exchange.Response {
	resp := r.Refuse(s)
	resp.Source = exchange.FromCache
	return r.withAge(resp)
}

// withAge adds upstream's warnings. If the state may be out of date, it also adds the state's age.
func (r *reading) withAge(resp *exchange.Response) *exchange.Response {
	resp.Header["Warning"] = r.warnings
	if r.age > 0 {
		resp.Header.Set("Age", strconv.Itoa(int(math.Ceil(r.age.Seconds()))))
	}
	return resp
}

// render makes the response to a list in the negotiated form.
//
//	cached items, plain    straight from the cache, nothing is copied
//	cached items, gzip     a compressed segment for each page, made once
//	metadata only          a piece for each page, made once, plain or compressed
//	selected, gzip         compressed while it is written
//	selected, metadata     made for this request
func (r *reading) render(meta wire.ListMeta, items *derived.ListItems) (*exchange.Response, error) {
	if work := r.work(items); work > 0 {
		return r.makeAnswer(items.Size()*work, func() (*exchange.Response, error) {
			return r.compose(meta, items)
		})
	}
	return r.compose(meta, items)
}

// makeAnswer makes a body for this read alone, in the memory of its request. The read gives its
// slot back before it waits for the memory.
func (r *reading) makeAnswer(
	size int64, do func() (*exchange.Response, error),
) (*exchange.Response, error) {
	r.meter.ReleaseSlot()
	if r.Memory.Take(r.meter.Context(), size) != nil {
		return nil, TooLarge
	}
	resp, err := do()
	if err != nil {
		r.Memory.Give(size)
		return nil, err
	}
	body := resp.Bytes()
	length := int64(len(body))
	r.Memory.Give(max(0, size-length))
	pieces := slices.Collect(slices.Chunk(body, fair.WriteSize))
	resp.Body = &fair.List{
		Content: &derived.List{Pieces: pieces},
		Length:  length,
		Turns:   &r.meter,
	}
	return resp, nil
}

// work returns the memory needed to make a list's body, as a multiple of the body's size. It is 0
// if the body is made while it is written.
func (r *reading) work(items *derived.ListItems) int64 {
	switch {
	case !r.selective() || r.form.Verbatim():
		return 0
	case r.compresses(items.Size()):
		return gzipWork
	}
	return cutWork
}

func (r *reading) compose(
	meta wire.ListMeta, items *derived.ListItems,
) (*exchange.Response, error) {
	body := &derived.List{Separator: items.Separator}
	if r.form.Verbatim() {
		body.Spans, body.Length = items.Spans, items.Size()
	} else if err := r.derive(items, body); err != nil {
		return nil, err
	}
	inner := body.Length
	body.Head = r.form.AppendListHead(nil, meta, inner)
	body.Tail = r.form.AppendListTail(nil, meta, inner)
	body.Length += int64(len(body.Head) + len(body.Tail))
	compresses := r.compresses(body.Length)
	switch {
	case r.work(items) > 0:
		return r.bytesAnswer(body.Bytes())
	case compresses && r.selective():
		return r.oneOff(body)
	case compresses:
		return r.holdTable(r.segmented(items, body))
	}
	return r.holdTable(r.listAnswer(body, body.Length), nil)
}

func (r *reading) listAnswer(list io.WriterTo, length int64) *exchange.Response {
	resp := r.respond()
	resp.Body = &fair.List{
		Content: list,
		Length:  length,
		Turns:   &r.meter,
		State:   r,
	}
	return resp
}

func (r *reading) Stays() bool { return r.cache.Stats().Since <= r.listed }

func (r *reading) oneOff(body *derived.List) (*exchange.Response, error) {
	resp := r.listAnswer(&derived.OneOff{List: body, Meter: &r.meter}, -1)
	gzipped(resp)
	r.meter.ReleaseSlot()
	if r.Memory.Take(r.meter.Context(), compressorSize) != nil {
		return nil, TooLarge
	}
	return resp, nil
}

func (r *reading) bytesAnswer(body []byte) (*exchange.Response, error) {
	resp := r.respond()
	if r.compresses(int64(len(body))) {
		if err := r.meter.Spend(int64(len(body))); err != nil {
			return nil, err
		}
		body = wire.GzipBody(body)
		gzipped(resp)
	}
	resp.Body = exchange.Bytes(body)
	return resp, nil
}

func gzipped(r *exchange.Response) {
	r.Header.Set("Content-Encoding", "gzip")
	r.Header.Set("Vary", "Accept-Encoding")
}

// derive makes items in a form that the cache does not hold. Selected items are made for this read
// alone, in the memory of its request. Spans of whole pages are shared: even if many clients
// read the list slowly, only one copy exists.
func (r *reading) derive(items *derived.ListItems, body *derived.List) error {
	runOf := r.derivedRun
	if r.selective() {
		runOf = r.selectedRun
	}
	for i, span := range items.Spans {
		run, err := runOf(span, i == 0)
		if err != nil {
			return r.unwritable(err)
		}
		body.Pieces, body.Shares = append(body.Pieces, run.Plain), append(body.Shares, run)
		body.Length += int64(len(run.Plain))
	}
	return nil
}

func (r *reading) selectedRun(span tree.Span, first bool) (*derived.Piece, error) {
	if err := r.meter.Spend(r.variant(first).Cost * span.Bytes()); err != nil {
		return nil, err
	}
	plain, err := derived.Items(r.form, span, first)
	return &derived.Piece{Plain: plain}, err
}

func (r *reading) derivedRun(span tree.Span, first bool) (*derived.Piece, error) {
	return r.derived.Get(&r.meter, span, r.variant(first), func() (made derived.Made, err error) {
		if r.rows == nil {
			made.Plain, err = derived.Items(r.form, span, first)
			return made, err
		}
		_ = r.rows.ValidUntil() // may cover rows written earlier for another purpose
		made.Plain, err = derived.Items(r.form, span, first)
		made.Until = r.rows.ValidUntil()
		return made, err
	})
}

func (r *reading) variant(first bool) derived.Variant {
	v := derived.Variant{
		Form:  derived.FormID{Choice: r.choice, RowObjects: r.RowObjects},
		First: first,
		Cost:  r.cost(),
	}
	if r.rows != nil {
		v.Rows = r.rows.Rules.ID
	}
	return v
}

// brief is the time for which ages must stay unchanged to make thorough compression worth its cost.
const brief = 20 * time.Second

func (r *reading) segmented(
	items *derived.ListItems, body *derived.List,
) (*exchange.Response, error) {
	segments := make([]*wire.Segment, 0, len(items.Spans)+2)
	shares := make([]*derived.Piece, 0, len(items.Spans))
	segments = append(segments, wire.StoredSegment(body.Head))
	for i, span := range items.Spans {
		v := r.variant(i == 0)
		v.Gzip, v.Cost = true, fair.Compress
		var until time.Time
		if r.rows != nil {
			until = body.Shares[i].Until
			v.Brief = !until.IsZero() && time.Until(until) < brief
		}
		if i > 0 {
			v.Behind = items.Spans[i-1]
		}
		p, err := r.derived.Get(&r.meter, span, v, func() (made derived.Made, err error) {
			made.Until = until
			if made.Context, err = r.endOf(v.Behind); err != nil {
				return made, err
			}
			if len(body.Pieces) > 0 {
				made.Plain = body.Pieces[i]
				return made, nil
			}
			made.Plain, err = derived.Items(r.form, span, i == 0)
			return made, err
		})
		if err != nil {
			return nil, r.unwritable(err)
		}
		segments, shares = append(segments, p.Segment), append(shares, p)
	}
	segments = append(segments, wire.StoredSegment(body.Tail))
	pieces, length := wire.Gzip(segments)
	resp := r.listAnswer(&derived.List{
		Pieces: pieces,
		Shares: shares,
		Length: length,
	}, length)
	gzipped(resp)
	return resp, nil
}

// holdTable reserves room for a Table until it is written. A Table's pieces are dropped when their
// ages change, so lists may hold different copies.
func (r *reading) holdTable(resp *exchange.Response, err error) (*exchange.Response, error) {
	if err != nil || r.rows == nil {
		return resp, err
	}
	r.meter.ReleaseSlot()
	if r.Memory.Take(r.meter.Context(), resp.Body.(*fair.List).Length) != nil {
		return nil, TooLarge
	}
	return resp, nil
}
