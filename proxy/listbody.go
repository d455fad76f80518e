package proxy

import (
	"bufio"
	"bytes"
	"io"
	"sync"

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
		whole, err := body.bytes()
		if err != nil {
			return nil, errForward
		}
		return r.rendered(whole)
	case r.filter.Selective() && (compresses || body.run != nil): // made for this request
		whole, err := body.bytes()
		if err != nil {
			return nil, errForward
		}
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

// derive has the body write items in another form than the one they are kept in. Items that a
// selector picks are made for this read alone, in its share of the workspace. Runs of whole pages
// are made once for all readers. The body does not hold these: it asks for each run again when it
// writes it, so that a hundred slow clients hold no more of them than [Derived] keeps.
func (r *read) derive(items *listItems, body *listBody) error {
	body.runs = len(items.spans)
	body.meter = &r.meter
	body.run = func(m *meter, i int) ([]byte, error) { return r.derivedRun(m, items.spans[i], i == 0) }
	if r.filter.Selective() {
		made := make([][]byte, len(items.spans))
		for i, span := range items.spans {
			err := r.meter.spend(cutCost * span.Bytes())
			if err == nil {
				made[i], err = r.itemsOf(span, i == 0)
			}
			if err != nil {
				return errForward
			}
		}
		body.run = func(_ *meter, i int) ([]byte, error) { return made[i], nil }
	}
	for i := range body.runs {
		run, err := body.run(body.meter, i)
		if err != nil {
			return errForward
		}
		body.length += int64(len(run))
	}
	return nil
}

func (r *read) derivedRun(m *meter, span watchcache.Span, first bool) ([]byte, error) {
	p, err := r.derived.get(m, span, variant{form: r.formID(), first: first}, func() (_, plain []byte, err error) {
		plain, err = r.itemsOf(span, first)
		return nil, plain, err
	})
	if err != nil {
		return nil, err
	}
	return p.plain, nil
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

// segmented is a list of compressed segments. As in derive, the body holds none of them.
func (r *read) segmented(items *listItems, body *listBody) (*response, error) {
	segment := func(m *meter, i int) (*wire.Segment, error) { return r.derivedSegment(m, items, body, i) }
	head, tail := wire.StoredSegment(body.head), wire.StoredSegment(body.tail)
	var sum wire.GzipSum
	sum.Add(head)
	for i := range items.spans {
		s, err := segment(&r.meter, i)
		if err != nil {
			return nil, errForward
		}
		sum.Add(s)
	}
	sum.Add(tail)
	resp := r.respond()
	resp.gzipped()
	resp.list, resp.length = &listBody{
		head:  sum.Begin(head.Bytes()),
		meter: &r.meter,
		runs:  len(items.spans),
		run: func(m *meter, i int) ([]byte, error) {
			s, err := segment(m, i)
			if err != nil {
				return nil, err
			}
			return s.Bytes(), nil
		},
		tail: sum.End(tail.Bytes()),
	}, sum.Len()
	return resp, nil
}

// derivedSegment is the i-th run of a list, compressed.
func (r *read) derivedSegment(m *meter, items *listItems, body *listBody, i int) (*wire.Segment, error) {
	span, v := items.spans[i], variant{form: r.formID(), gzip: true, first: i == 0}
	if i > 0 {
		v.behind = items.spans[i-1]
	}
	p, err := r.derived.get(m, span, v, func() (context, plain []byte, err error) {
		if context, err = r.endOf(v.behind); err != nil {
			return nil, nil, err
		}
		if body.run != nil {
			plain, err = body.run(nil, i) // it is part of this one
		} else {
			plain, err = r.itemsOf(span, i == 0)
		}
		return context, plain, err
	})
	if err != nil {
		return nil, err
	}
	return p.segment, nil
}

// listBody is a list that is written straight from the cache: it holds no copy of any item, and a
// derived run for no longer than it takes to write it.
type listBody struct {
	head, tail []byte
	spans      []watchcache.Span // of items as they are kept, or instead:
	runs       int
	run        func(m *meter, i int) ([]byte, error)
	meter      *meter // of what has to be made anew while the list is written
	separator  string
	length     int64
}

// bytes is the body in one piece.
func (b *listBody) bytes() ([]byte, error) {
	var whole bytes.Buffer
	whole.Grow(int(b.length))
	_, err := b.WriteTo(&whole)
	return whole.Bytes(), err
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
	for i := 0; i < b.runs && err == nil; i++ {
		var run []byte
		run, err = b.run(b.meter, i)
		b.meter.rest()
		if err == nil {
			write(run)
		}
	}
	write(b.tail)
	return n, err
}

// buffered is a list that is written in large pieces: each is a system call, a TLS record
// or more, and over HTTP/2 a message to another goroutine.
type buffered struct{ io.WriterTo }

// writeSize is that of four TLS records.
const writeSize = 64 << 10

var writeBuffers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, writeSize) }}

// WriteTo implements io.WriterTo.
func (b buffered) WriteTo(w io.Writer) (int64, error) {
	large := writeBuffers.Get().(*bufio.Writer)
	large.Reset(w)
	n, err := b.WriterTo.WriteTo(large)
	if err == nil {
		err = large.Flush()
	}
	if err != nil {
		return n, err // HTTP/2 may still hold the buffer
	}
	large.Reset(nil)
	writeBuffers.Put(large)
	return n, nil
}
