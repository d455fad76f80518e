package wire

import "strconv"

// JSON is the form in which kube-apiserver writes one resource as JSON.
type JSON struct {
	kind, listKind, apiVersion string
	sorted                     bool
	typeMeta                   []byte // what a single object has before its metadata
}

// NewJSON returns the form of a resource. Sorted is the form of custom
// resources, whose keys are sorted and whose items describe themselves.
func NewJSON(kind, listKind, apiVersion string, sorted bool) *JSON {
	j := &JSON{kind: kind, listKind: listKind, apiVersion: apiVersion, sorted: sorted}
	if !sorted {
		j.typeMeta = []byte(`"kind":"` + kind + `","apiVersion":"` + apiVersion + `",`)
	}
	return j
}

// ListMeta is the metadata of a list.
type ListMeta struct {
	ResourceVersion uint64
	// Continue is the token of the next page, "" on the last.
	Continue string
	// Remaining is the number of items after this page; nil where it is unknown.
	Remaining *int64
}

// AppendListHead writes a list up to its first item.
func (j *JSON) AppendListHead(dst []byte, m ListMeta) []byte {
	if j.sorted {
		dst = append(dst, `{"apiVersion":"`...)
		dst = append(dst, j.apiVersion...)
		return append(dst, `","items":[`...)
	}
	dst = append(dst, `{"kind":"`...)
	dst = append(dst, j.listKind...)
	dst = append(dst, `","apiVersion":"`...)
	dst = append(dst, j.apiVersion...)
	dst = append(dst, `","metadata":{"resourceVersion":"`...)
	dst = strconv.AppendUint(dst, m.ResourceVersion, 10)
	dst = append(dst, '"')
	if m.Continue != "" {
		dst = append(dst, `,"continue":"`...)
		dst = append(dst, m.Continue...)
		dst = append(dst, '"')
	}
	if m.Remaining != nil {
		dst = append(dst, `,"remainingItemCount":`...)
		dst = strconv.AppendInt(dst, *m.Remaining, 10)
	}
	return append(dst, `},"items":[`...)
}

// AppendListTail writes a list from after its last item.
func (j *JSON) AppendListTail(dst []byte, m ListMeta) []byte {
	if !j.sorted {
		return append(dst, "]}\n"...)
	}
	dst = append(dst, `],"kind":"`...)
	dst = append(dst, j.listKind...)
	dst = append(dst, `","metadata":{"continue":"`...)
	dst = append(dst, m.Continue...)
	dst = append(dst, '"')
	if m.Remaining != nil {
		dst = append(dst, `,"remainingItemCount":`...)
		dst = strconv.AppendInt(dst, *m.Remaining, 10)
	}
	dst = append(dst, `,"resourceVersion":"`...)
	dst = strconv.AppendUint(dst, m.ResourceVersion, 10)
	return append(dst, "\"}}\n"...)
}

// AppendObject writes a list item as an object of its own, without the newline
// that ends a body.
func (j *JSON) AppendObject(dst, item []byte) []byte {
	if j.sorted {
		return append(dst, item...)
	}
	dst = append(dst, '{')
	dst = append(dst, j.typeMeta...)
	return append(dst, item[1:]...)
}

// Stamp says where the digits of an item's resourceVersion stand and which to
// write instead: a watch shows an object that left its selection with its
// previous content at the resourceVersion of the change.
type Stamp struct {
	Start, End      int
	ResourceVersion uint64
}

// AppendEvent writes a watch event with a list item as its object. A nil stamp
// leaves the object as it is.
func (j *JSON) AppendEvent(dst []byte, eventType string, item []byte, stamp *Stamp) []byte {
	dst = appendEventHead(dst, eventType)
	if stamp == nil {
		dst = j.AppendObject(dst, item)
	} else {
		dst = j.AppendObject(dst, item[:stamp.Start])
		dst = strconv.AppendUint(dst, stamp.ResourceVersion, 10)
		dst = append(dst, item[stamp.End:]...)
	}
	return append(dst, "}\n"...)
}

// AppendRawEvent writes a watch event whose object is complete, such as a
// bookmark or a Status.
func AppendRawEvent(dst []byte, eventType string, object []byte) []byte {
	dst = appendEventHead(dst, eventType)
	dst = append(dst, object...)
	return append(dst, "}\n"...)
}

func appendEventHead(dst []byte, eventType string) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, eventType...)
	return append(dst, `","object":`...)
}
