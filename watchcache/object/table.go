package object

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// Columns are the columns of a resource's Tables.
type Columns struct {
	// Definitions is the JSON array as upstream writes it.
	Definitions []byte
	// KeepsMetadata says that the rows' metadata is kept, because it is not the objects' own.
	KeepsMetadata bool
	// Defined says that the definition of a custom resource is known, and so are Paths.
	Defined bool
	// Paths are the JSONPaths of the columns that a custom resource's definition adds. The first of
	// them belongs to the second column.
	Paths []string
}

// ErrColumns says that upstream's Tables have other columns than they had when the cache was begun.
var ErrColumns = errors.New("upstream's Table has other columns")

// rowLead is the length of what precedes a row's text: the time of its arrival, the fingerprint of
// its object's metadata, and the text's length. The tag and the length that precede a message are
// shorter.
const rowLead = 8 + 8 + 4

// parseTable reads a Table with one row, as watch events show it.
func (r *Resource) parseTable(src []byte) (*Object, error) {
	table, rows, err := r.splitTable(src)
	if err != nil {
		return nil, err
	}
	if len(rows) != 1 {
		return nil, fmt.Errorf("%w: a Table of %d rows in an event", ErrMalformed, len(rows))
	}
	if !table.Get("metadata.resourceVersion").Exists() {
		return nil, fmt.Errorf("%w: Table without a resourceVersion", ErrMalformed)
	}
	return r.ParseRow(rows[0])
}

// splitTable checks a Table and returns its rows.
func (r *Resource) splitTable(src []byte) (table gjson.Result, rows []gjson.Result, err error) {
	if !gjson.ValidBytes(src) {
		return table, nil, fmt.Errorf("%w: a Table that is not JSON", ErrMalformed)
	}
	table = gjson.Parse(lend(src))
	if table.Get("kind").Str != "Table" || table.Get("apiVersion").Str != TableVersion {
		return table, nil, fmt.Errorf("%w: %.100s is no Table", ErrMalformed, src)
	}
	if columns := table.Get("columnDefinitions"); columns.IsArray() && columns.Raw != lend(r.Columns.Definitions) {
		return table, nil, ErrColumns
	}
	return table, table.Get("rows").Array(), nil
}

// TableVersion is the apiVersion of Tables.
const TableVersion = "meta.k8s.io/v1"

// ParseTable reads the columns of a Table, its rows, and its metadata.
func (r *Resource) ParseTable(src []byte) (rows []*Object, meta gjson.Result, err error) {
	table, all, err := r.splitTable(src)
	if err != nil {
		return nil, meta, err
	}
	for _, row := range all {
		o, err := r.ParseRow(row)
		if err != nil {
			return nil, meta, err
		}
		rows = append(rows, o)
	}
	return rows, table.Get("metadata"), nil
}

// ParseRow reads a row with the metadata of its object. It keeps the row without the object, and
// the present time: ages in the cells are those of about this time.
func (r *Resource) ParseRow(row gjson.Result) (*Object, error) {
	o := &Object{}
	meta := row.Get("object.metadata")
	if !meta.IsObject() {
		return nil, fmt.Errorf("%w: a row without its object's metadata: %.100s", ErrMalformed, row.Raw)
	}
	var namespace, name string
	var err error
	meta.ForEach(func(k, v gjson.Result) bool {
		switch k.Str {
		case "name":
			name = v.Str
		case "namespace":
			namespace = v.Str
		case "uid":
			o.uid = strings.Clone(v.Str)
		case "resourceVersion":
			if o.rv, err = ParseResourceVersion(v.Str); err != nil {
				err = fmt.Errorf("resourceVersion of %q: %w", name, err)
			}
		}
		return err == nil
	})
	if err == nil {
		err = o.place(r, namespace, strings.Clone(name))
	}
	if err != nil {
		return nil, err
	}
	text, partial, err := splitRow(row.Raw)
	if err != nil {
		return nil, err
	}
	o.raw = binary.BigEndian.AppendUint64(make([]byte, 0, rowLead+len(text)), uint64(time.Now().Unix()))
	o.raw = binary.BigEndian.AppendUint64(o.raw, fingerprint([]byte(partial)))
	o.raw = binary.BigEndian.AppendUint32(o.raw, uint32(len(text)))
	o.raw, o.lead = append(o.raw, text...), rowLead
	if r.Columns.KeepsMetadata {
		at, digits := findVersion([]byte(partial))
		o.rvAt, o.rvLen = int32(len(o.raw)+at), int32(digits)
		o.raw = append(o.raw, partial...)
	}
	return o, nil
}

// splitRow cuts a row's last member, which is its object, and the closing brace:
//
//	{"cells":[…],"conditions":[…]
func splitRow(row string) (text, object string, err error) {
	object = gjson.Get(row, "object").Raw
	text, isLast := strings.CutSuffix(row, object+"}")
	text, named := strings.CutSuffix(text, `,"object":`)
	if !isLast || !named || !strings.HasPrefix(text, `{"cells":[`) {
		return "", "", fmt.Errorf("%w: a row in another order: %.100s", ErrMalformed, row)
	}
	return text, object, nil
}

// Rendered is the time at which a row arrived. Upstream rendered its ages not long before.
func (o *Object) Rendered() time.Time {
	return time.Unix(int64(binary.BigEndian.Uint64(o.raw)), 0)
}

// Row is a row without its object and the closing brace.
func (o *Object) Row() []byte { return o.raw[rowLead : rowLead+o.rowLen()] }

func (o *Object) rowLen() int { return int(binary.BigEndian.Uint32(o.raw[rowLead-4:])) }

// RowMetadata returns the metadata that upstream showed in a row. made is the metadata that was
// made from the object; RowMetadata fails if it is not the same and the cache does not keep it. The
// resourceVersion does not count: the metadata of an object that left a selection has that of the
// event.
func (o *Object) RowMetadata(made []byte) ([]byte, error) {
	if own := o.raw[rowLead+o.rowLen():]; len(own) > 0 {
		return own, nil
	}
	if fingerprint(made) != binary.BigEndian.Uint64(o.raw[8:]) {
		return nil, ErrMetadata
	}
	return made, nil
}

// ErrMetadata says that a row's metadata is not that of its object. Upstream makes rows from
// another version of the API, in which some metadata may be missing.
var ErrMetadata = errors.New("a row has other metadata than its object")

// fingerprint is a hash of metadata without the digits of its resourceVersion.
func fingerprint(partial []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	at, digits := findVersion(partial)
	_, _ = h.Write(partial[:at]) // never fails
	_, _ = h.Write(partial[at+digits:])
	return h.Sum64()
}

var seed = maphash.MakeSeed()

// findVersion returns where the digits of the resourceVersion are in PartialObjectMetadata. Before
// them there are names only, which have no quotes.
func findVersion(partial []byte) (at, digits int) {
	const name = `"resourceVersion":"`
	i := bytes.Index(partial, []byte(name))
	if i < 0 {
		return len(partial), 0
	}
	at = i + len(name)
	return at, max(0, bytes.IndexByte(partial[at:], '"'))
}

// parseTableBookmark reads a bookmark that is shown as a Table. Its only row is that of the zero
// value of the kind.
func (r *Resource) parseTableBookmark(src []byte) (*Bookmark, uint64, error) {
	table, rows, err := r.splitTable(src)
	if err != nil {
		return nil, 0, err
	}
	if len(rows) != 1 {
		return nil, 0, fmt.Errorf("%w: a bookmark of %d rows", ErrMalformed, len(rows))
	}
	rv, err := ParseResourceVersion(table.Get("metadata.resourceVersion").Str)
	if err != nil {
		return nil, 0, err
	}
	text, _, err := splitRow(rows[0].Raw)
	return &Bookmark{row: []byte(text)}, rv, err
}

// Row is a bookmark's row in a Table, without its object; see [Object.Row].
func (b *Bookmark) Row() []byte { return bytes.Clone(b.row) }
