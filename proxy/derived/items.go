package derived

import (
	"runtime"

	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/proxy/wire"
	"github.com/watchproxy/watchproxy/watchcache/tree"
)

// Items returns the items of a span, with separators. A list's first item has no separator.
func Items(form wire.Form, span tree.Span, first bool) (items []byte, err error) {
	if form.Verbatim() {
		items = make([]byte, 0, span.Bytes()+int64(len(span.Objects())))
	}
	for _, o := range span.Objects() {
		if !first {
			items = append(items, form.Separator()...)
		}
		first = false
		if form.Verbatim() {
			items = append(items, o.Item()...)
		} else if items, err = form.AppendItem(items, o); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// EndOf returns the last items of a span, about as many as a compressed segment may refer to.
func EndOf(form wire.Form, span tree.Span) (end []byte, err error) {
	for lo := span.Hi - 1; ; lo-- {
		last := span
		last.Lo = lo
		if lo > span.Lo && last.Bytes() < wire.ContextMax {
			continue
		}
		end, err = Items(form, last, true)
		if lo == span.Lo || err != nil || len(end) >= wire.ContextMax {
			return end, err
		}
	}
}

// AddedEvents passes the objects of a span to write, as the first events of a watch, in compressed
// form. Until write returns, other watches find the same segment, even if it is not kept.
func (d *Store) AddedEvents(
	m *fair.Meter, span tree.Span, c wire.Choice, form wire.Form, write func(*wire.Segment) error,
) error {
	v := Variant{
		Form:   FormID{Choice: c},
		Gzip:   true,
		Events: true,
		Cost:   fair.Compress,
	}
	p, err := d.Get(m, span, v, func() (made Made, err error) {
		for _, o := range span.Objects() {
			if made.Plain, err = form.AppendEvent(made.Plain, "ADDED", o); err != nil {
				return made, err
			}
		}
		return made, nil
	})
	if err != nil {
		return err
	}
	err = write(p.Segment)
	runtime.KeepAlive(p)
	return err
}
