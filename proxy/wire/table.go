package wire

import (
	"bytes"
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/proxy/projection"
)

// Rows provides the parts of a Table that only upstream can make.
type Rows interface {
	// Columns returns the column definitions, and Empty the JSON of no rows.
	Columns() []byte
	Empty() string
	// AppendRow appends an object's row without the object and the closing brace:
	// {"cells":[…],"conditions":[…]. gone is true if the object was deleted or left a selection.
	AppendRow(dst []byte, o Object, gone bool) ([]byte, error)
	// Metadata returns the metadata of the last appended row, as PartialObjectMetadata. made is the
	// PartialObjectMetadata that this package made from the object. Metadata fails if the row does
	// not belong to this object.
	Metadata(made []byte) ([]byte, error)
	// AppendBookmarkRow is AppendRow for the object of a bookmark. AppendBookmarkMetadata writes
	// the PartialObjectMetadata of that object at a resourceVersion. ends is true for the bookmark
	// that ends the initial events.
	AppendBookmarkRow(dst []byte) []byte
	AppendBookmarkMetadata(dst []byte, rv uint64, ends bool) []byte
}

// tableForm writes Tables. It is made for one read, because only the first event of a watch has the
// column definitions.
type tableForm struct {
	inJSON
	rows    Rows
	objects bool // rows contain whole objects, else their metadata
	whole   Form
	partial Form
	fields  *projection.Projection
	defined bool // an event with the column definitions was written
}

// NewTable returns the form of a Table, whose rows contain whole objects or their metadata. fields
// says which fields of them stay. The cells are upstream's in any case.
func NewTable(k Kind, objects bool, rows Rows, fields *projection.Projection) Form {
	return &tableForm{
		rows:    rows,
		objects: objects,
		whole:   NewForm(Choice{Fields: fields}, k),
		partial: NewForm(Choice{Partial: true}, k),
		fields:  fields,
	}
}

func (t *tableForm) AppendItem(dst []byte, o Object) ([]byte, error) {
	return t.appendRow(dst, o, false)
}

func (t *tableForm) appendRow(dst []byte, o Object, gone bool) ([]byte, error) {
	dst, err := t.rows.AppendRow(dst, o, gone)
	if err != nil {
		return dst, err
	}
	dst = append(dst, `,"object":`...)
	begin := len(dst)
	if dst, err = t.partial.AppendItem(dst, o); err != nil {
		return dst, err
	}
	// Metadata is called in any case, because it checks that the row belongs to this object.
	metadata, err := t.rows.Metadata(dst[begin:])
	switch dst = dst[:begin]; {
	case t.objects && err == nil:
		dst, err = t.whole.AppendObject(dst, o)
		dst = bytes.TrimSuffix(dst, []byte{'\n'})
	case err == nil:
		dst, err = t.fields.Append(dst, metadata)
	}
	return append(dst, '}'), err
}

func (t *tableForm) AppendListHead(dst []byte, m ListMeta, items int64) []byte {
	dst = t.appendHead(dst, m, t.rows.Columns())
	if items == 0 {
		return append(dst[:len(dst)-len("[")], t.rows.Empty()...)
	}
	return dst
}

func (t *tableForm) appendHead(dst []byte, m ListMeta, columns []byte) []byte {
	dst = appendTypedHead(dst, "Table", metaGroup+"/"+metaVersion, m)
	dst = append(dst, `,"columnDefinitions":`...)
	dst = append(dst, columns...)
	return append(dst, `,"rows":[`...)
}

const tableTail = "]}"

func (t *tableForm) AppendListTail(dst []byte, _ ListMeta, items int64) []byte {
	if items == 0 {
		return append(dst, "}\n"...)
	}
	return append(dst, tableTail+"\n"...)
}

func (t *tableForm) AppendObject(dst []byte, o Object) ([]byte, error) {
	meta := ListMeta{ResourceVersion: o.ResourceVersion()}
	dst, err := t.appendRow(t.appendHead(dst, meta, t.rows.Columns()), o, false)
	return append(dst, tableTail+"\n"...), err
}

func (t *tableForm) AppendEvent(dst []byte, eventType string, o Object) ([]byte, error) {
	begin := len(dst)
	dst = t.appendEventHead(dst, eventType, o.ResourceVersion())
	dst, err := t.appendRow(dst, o, eventType == "DELETED")
	if err != nil {
		return dst[:begin], err
	}
	t.defined = true
	return append(append(dst, tableTail...), eventTail...), nil
}

func (t *tableForm) appendEventHead(dst []byte, eventType string, rv uint64) []byte {
	columns := []byte("null")
	if !t.defined {
		columns = t.rows.Columns()
	}
	return t.appendHead(appendEventHead(dst, eventType), ListMeta{ResourceVersion: rv}, columns)
}

func (t *tableForm) AppendBookmark(dst, object []byte) ([]byte, error) {
	meta := gjson.GetBytes(object, "metadata")
	rv, err := strconv.ParseUint(meta.Get("resourceVersion").Str, 10, 64)
	if err != nil {
		return dst, err
	}
	dst = t.rows.AppendBookmarkRow(t.appendEventHead(dst, "BOOKMARK", rv))
	dst = append(dst, `,"object":`...)
	if t.objects {
		dst = append(dst, object...)
	} else {
		ends := meta.Get(`annotations.k8s\.io/initial-events-end`).Str == "true"
		dst = t.rows.AppendBookmarkMetadata(dst, rv, ends)
	}
	t.defined = true
	return append(append(dst, "}"+tableTail...), eventTail...), nil
}
