package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache"
)

// listItems are the items of a list, as runs of pages of the cache.
type listItems struct {
	spans     []watchcache.Span
	count     int
	bytes     int64 // of the items as they are kept, without separators
	separator string
}

func (l *listItems) add(s watchcache.Span) {
	l.spans = append(l.spans, s)
	l.count += s.Hi - s.Lo
	l.bytes += s.Bytes()
}

// size is the length of the items as they are kept, with what separates them.
func (l *listItems) size() int64 {
	return l.bytes + int64(max(l.count-1, 0)*len(l.separator))
}

// render writes a list in the form that was negotiated.
//
//	kept items, plain      straight from the cache, nothing is copied
//	kept items, gzip       a compressed segment of each page, made once
//	metadata only          a piece of each page, made once, plain or compressed
//	selected, gzip         compressed for this request
//	selected, metadata     made for this request
//	YAML, indented         made for this request
func (r *read) render(meta wire.ListMeta, items *listItems) (*response, error) {
	if work := r.work(items); work > 0 {
		return r.made(items.size(), work, func() (*response, error) { return r.write(meta, items) })
	}
	return r.write(meta, items)
}

// made makes a body in the workspace. While it waits there, others compute.
func (r *read) made(size, work int64, do func() (*response, error)) (*response, error) {
	r.meter.rest()
	return r.workspace.made(r.meter.ctx, claim{user: r.identity.name(), size: size * work, held: r.held()}, do)
}

// work is how many times as much memory it takes to make a list's body, 0 if that is shared with others.
func (r *read) work(items *listItems) int64 {
	switch {
	case r.choice.Rendered():
		return r.choiceWork()
	case r.filter.Selective() && r.compresses(items.size()):
		return gzipWork
	case r.filter.Selective() && !r.form.Kept():
		return cutWork
	}
	return 0
}

// choiceWork is that of a body for people.
func (r *read) choiceWork() int64 {
	if r.choice.Encoding == wire.YAML {
		return yamlWork
	}
	return indentWork
}

// write makes the body of a list.
func (r *read) write(meta wire.ListMeta, items *listItems) (*response, error) {
	body := &listBody{separator: items.separator}
	if r.form.Kept() {
		body.spans, body.length = items.spans, items.size()
	} else if err := r.derive(items, body); err != nil {
		return nil, err
	}
	inner := body.length
	body.head = r.form.AppendListHead(nil, meta, inner)
	body.tail = r.form.AppendListTail(nil, meta, inner)
	body.length += int64(len(body.head) + len(body.tail))
	compresses := r.compresses(body.length)
	switch {
	case r.choice.Rendered():
		return r.rendered(body.bytes())
	case r.filter.Selective() && (compresses || body.pieces != nil): // made for this request
		whole := body.bytes()
		resp := r.respond()
		resp.bytes = whole
		if compresses {
			if err := r.meter.spend(gzipCost * body.length); err != nil {
				return nil, err
			}
			resp.compressed(wire.GzipBody(whole))
		}
		return resp, nil
	case compresses:
		return r.segmented(items, body)
	}
	resp := r.respond()
	resp.list, resp.length = body, body.length
	return resp, nil
}

// compresses tells whether kube-apiserver would compress a body of a length.
func (r *read) compresses(length int64) bool {
	return length > wire.GzipThreshold && wire.AcceptsGzip(r.header.Get("Accept-Encoding"))
}

// rendered is a body for people.
func (r *read) rendered(body []byte) (*response, error) {
	cost := int64(indentCost)
	if r.choice.Encoding == wire.YAML {
		cost = yamlCost
	}
	if err := r.meter.spend(cost * int64(len(body))); err != nil {
		return nil, err
	}
	body, contentType, err := r.choice.Render(body)
	if err != nil {
		return nil, errForward
	}
	resp := r.respond()
	resp.header.Set("Content-Type", contentType)
	if r.compresses(int64(len(body))) {
		if err := r.meter.spend(gzipCost * int64(len(body))); err != nil {
			return nil, err
		}
		resp.compressed(wire.GzipBody(body))
		return resp, nil
	}
	resp.bytes = body
	return resp, nil
}

// compressed makes a gzip body the response's.
func (r *response) compressed(body []byte) {
	r.gzipped()
	r.bytes = body
}

func (r *response) gzipped() {
	r.header.Set("Content-Encoding", "gzip")
	r.header.Set("Vary", "Accept-Encoding")
}

// derive makes the items that are not kept as they are wanted. Items that a selector picks are made
// for this read alone, in its share of the workspace. Runs of whole pages are shared with all
// readers: however many clients write them slowly, there is one copy of each.
func (r *read) derive(items *listItems, body *listBody) error {
	runOf := r.derivedRun
	if r.filter.Selective() {
		runOf = r.selectedRun
	}
	for i, span := range items.spans {
		run, err := runOf(span, i == 0)
		if err != nil {
			return errForward
		}
		body.pieces, body.shares = append(body.pieces, run.plain), append(body.shares, run)
		body.length += int64(len(run.plain))
	}
	return nil
}

func (r *read) selectedRun(span watchcache.Span, first bool) (*piece, error) {
	if err := r.meter.spend(cutCost * span.Bytes()); err != nil {
		return nil, err
	}
	plain, err := r.itemsOf(span, first)
	return &piece{plain: plain}, err
}

func (r *read) derivedRun(span watchcache.Span, first bool) (*piece, error) {
	return r.derived.get(&r.meter, span, variant{form: r.formID(), first: first}, func() (_, plain []byte, err error) {
		plain, err = r.itemsOf(span, first)
		return nil, plain, err
	})
}

// itemsOf are the items of a span as they are wanted, with a separator before each
// but the first of a list.
func (r *read) itemsOf(span watchcache.Span, first bool) (dst []byte, err error) {
	if r.form.Kept() {
		dst = make([]byte, 0, span.Bytes()+int64(len(span.Objects())))
	}
	for _, o := range span.Objects() {
		if !first {
			dst = append(dst, r.form.Separator()...)
		}
		first = false
		if r.form.Kept() {
			dst = append(dst, o.Item()...)
		} else if dst, err = r.form.AppendItem(dst, o.Bytes()); err != nil {
			return nil, err
		}
	}
	return dst, nil
}

// endOf is the end of a span's items, at least as much of it as a segment may refer
// to, unless there is less: what stands before the span is not the same in each list.
func (r *read) endOf(span watchcache.Span) (end []byte, err error) {
	if span.Page == nil {
		return nil, nil
	}
	for lo := span.Hi - 1; ; lo-- {
		last := watchcache.Span{Page: span.Page, Lo: lo, Hi: span.Hi}
		if lo > span.Lo && last.Bytes() < wire.ContextMax {
			continue
		}
		if end, err = r.itemsOf(last, true); lo == span.Lo || err != nil || len(end) >= wire.ContextMax {
			return end, err
		}
	}
}

// formID names the form of derived items.
func (r *read) formID() formID {
	switch {
	case r.form.Kept():
		return keptForm
	case r.choice.Encoding == wire.Protobuf:
		return partialProtobufForm
	}
	return partialJSONForm
}

// segmented is a list of compressed segments.
func (r *read) segmented(items *listItems, body *listBody) (*response, error) {
	segments, shares := make([]*wire.Segment, 0, len(items.spans)+2), make([]*piece, 0, len(items.spans))
	segments = append(segments, wire.StoredSegment(body.head))
	for i, span := range items.spans {
		v := variant{form: r.formID(), gzip: true, first: i == 0}
		if i > 0 {
			v.behind = items.spans[i-1]
		}
		p, err := r.derived.get(&r.meter, span, v, func() (context, plain []byte, err error) {
			if context, err = r.endOf(v.behind); err != nil {
				return nil, nil, err
			}
			if len(body.pieces) > 0 {
				return context, body.pieces[i], nil
			}
			plain, err = r.itemsOf(span, i == 0)
			return context, plain, err
		})
		if err != nil {
			return nil, errForward
		}
		segments, shares = append(segments, p.segment), append(shares, p)
	}
	segments = append(segments, wire.StoredSegment(body.tail))
	resp := r.respond()
	resp.gzipped()
	pieces, length := wire.Gzip(segments)
	resp.list, resp.length = &listBody{pieces: pieces, shares: shares, length: length}, length
	return resp, nil
}

// listBody is a list that is written straight from the cache: it holds no copy of any item, and
// shares what was derived with all others that write it.
type listBody struct {
	head, tail []byte
	spans      []watchcache.Span // of items as they are kept, or instead:
	pieces     [][]byte
	shares     []*piece // that the pieces belong to: others find them while they are held
	separator  string
	length     int64
}

// bytes is the body in one piece.
func (b *listBody) bytes() []byte {
	var whole bytes.Buffer
	whole.Grow(int(b.length))
	_, _ = b.WriteTo(&whole) // to memory
	return whole.Bytes()
}

// WriteTo implements io.WriterTo.
func (b *listBody) WriteTo(w io.Writer) (n int64, err error) {
	write := func(p []byte) {
		if err == nil && len(p) > 0 {
			var m int
			m, err = w.Write(p)
			n += int64(m)
		}
	}
	write(b.head)
	separator := []byte(b.separator)
	first := true
	for _, span := range b.spans {
		for _, o := range span.Objects() {
			if !first {
				write(separator)
			}
			first = false
			write(o.Item())
		}
		if err != nil {
			return n, err
		}
	}
	for _, p := range b.pieces {
		write(p)
	}
	write(b.tail)
	return n, err
}

// buffered is a list that is written in large pieces: each is a system call, a TLS record
// or more, and over HTTP/2 a message to another goroutine.
type buffered struct{ io.WriterTo }

// writeSize is that of four TLS records.
const writeSize = 64 << 10

var listWriters = sync.Pool{New: func() any { return &listWriter{large: bufio.NewWriterSize(nil, writeSize)} }}

type listWriter struct {
	large *bufio.Writer
	paced paced
}

// WriteTo implements io.WriterTo.
func (b buffered) WriteTo(w io.Writer) (int64, error) {
	lw := listWriters.Get().(*listWriter)
	lw.paced = paced{Writer: w, began: time.Now()}
	large := lw.large
	large.Reset(&lw.paced)
	n, err := b.WriterTo.WriteTo(large)
	if err == nil {
		err = large.Flush()
	}
	if err != nil {
		return n, err // HTTP/2 may still hold the buffer
	}
	large.Reset(nil)
	lw.paced = paced{}
	listWriters.Put(lw)
	return n, nil
}

// paced ends the writing of a list to a client that reads less than listPace on average. A list
// keeps the objects and pages alive that it shows. Kube-apiserver ends every answer but a watch
// after a minute.
type paced struct {
	io.Writer
	began   time.Time
	written int64
}

const (
	listGrace = time.Minute
	listPace  = 64 << 10 // bytes a second
)

var errSlowList = errors.New("the client reads a list too slowly")

// Write implements io.Writer.
func (p *paced) Write(b []byte) (int, error) {
	if time.Since(p.began) > listGrace+time.Duration(p.written)*time.Second/listPace {
		return 0, errSlowList
	}
	n, err := p.Writer.Write(b)
	p.written += int64(n)
	return n, err
}
