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
	// Definitions is upstream's JSON array.
	Definitions []byte
	// Empty is the JSON of no rows, "[]" or "null". It is "" if it is unknown.
	Empty string
	// Defined means that the definition of a custom resource is known. Then Paths is valid.
	Defined bool
	// Paths contains the JSONPaths of the columns that a custom resource's definition adds. The
	// first path belongs to the second column.
	Paths []string
	// Clock is compared with the clock of the upstream that computes the ages.
	Clock *Clock
}

// ErrColumns means that the columns of upstream's Tables have changed since the cache was created.
var ErrColumns = errors.New("upstream's Table has other columns")

// rowLead is the length of the bytes before a row's text: the arrival time, the fingerprint of the
// object's metadata, and the text's length. The tag and length before a protobuf message are
// shorter.
const rowLead = 8 + 8 + 4

func (r *Resource) parseTable(src []byte) (*Object, error) {
	table, row, err := r.splitEvent(src)
	if err != nil {
		return nil, err
	}
	if !table.Get("metadata.resourceVersion").Exists() {
		return nil, Malformed("Table without a resourceVersion")
	}
	return r.ParseRow(row)
}

// splitEvent returns the Table of a watch event, which has one row.
func (r *Resource) splitEvent(src []byte) (table, row gjson.Result, err error) {
	if table, err = r.checkTable(src); err != nil {
		return table, row, err
	}
	rows := table.Get("rows").Array()
	if len(rows) != 1 {
		return table, row, Malformed("a Table of %d rows in an event", len(rows))
	}
	return table, rows[0], nil
}

func (r *Resource) checkTable(src []byte) (table gjson.Result, err error) {
	if !gjson.ValidBytes(src) {
		return table, Malformed("a Table that is not JSON")
	}
	table = gjson.Parse(lend(src))
	if table.Get("kind").Str != "Table" || table.Get("apiVersion").Str != TableVersion {
		return table, Malformed("%.100s is no Table", src)
	}
	columns := table.Get("columnDefinitions")
	if columns.IsArray() && columns.Raw != lend(r.Columns.Definitions) {
		return table, ErrColumns
	}
	return table, nil
}

// TableVersion is the apiVersion of Tables.
const TableVersion = "meta.k8s.io/v1"

// ParseTable checks the columns of a Table and returns its metadata.
func (r *Resource) ParseTable(src []byte) (meta gjson.Result, err error) {
	table, err := r.checkTable(src)
	return table.Get("metadata"), err
}

// ParseRow reads a row with the metadata of its object. It keeps the row without the object. It
// also keeps the present time, because the ages in the cells were computed about now.
func (r *Resource) ParseRow(row gjson.Result) (*Object, error) {
	meta := row.Get("object.metadata")
	if !meta.IsObject() {
		return nil, Malformed("a row without its object's metadata: %.100s", row.Raw)
	}
	var m metadata
	var err error
	meta.ForEach(func(k, v gjson.Result) bool {
		switch k.Str {
		case "name":
			m.name = strings.Clone(v.Str)
		case "namespace":
			m.namespace = v.Str
		case "uid":
			m.uid = strings.Clone(v.Str)
		case "resourceVersion":
			if m.rv, err = ParseResourceVersion(v.Str); err != nil {
				err = fmt.Errorf("resourceVersion of %q: %w", m.name, err)
			}
		}
		return err == nil
	})
	if err == nil {
		err = r.check(&m)
	}
	if err != nil {
		return nil, err
	}
	text, partial, err := splitRow(row.Raw)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, 0, rowLead+len(text))
	raw = binary.BigEndian.AppendUint64(raw, uint64(time.Now().Unix()))
	raw = binary.BigEndian.AppendUint64(raw, fingerprint([]byte(partial)))
	raw = binary.BigEndian.AppendUint32(raw, uint32(len(text)))
	raw = append(raw, text...)
	if InternalMetadata(r.GVR) {
		at, digits := findVersion([]byte(partial))
		if digits == 0 {
			return nil, Malformed("a row whose resourceVersion is not understood: %.200s", partial)
		}
		m.rvAt, m.rvLen = int32(len(raw)+at), int32(digits)
		raw = append(raw, partial...)
	}
	return r.object(raw, rowLead, &m)
}

// splitRow cuts off a row's last member, which is its object, and the closing brace. The text is:
//
//	{"cells":[…],"conditions":[…]
func splitRow(row string) (text, object string, err error) {
	object = gjson.Get(row, "object").Raw
	text, isLast := strings.CutSuffix(row, object+"}")
	text, named := strings.CutSuffix(text, `,"object":`)
	if !isLast || !named || !strings.HasPrefix(text, `{"cells":[`) {
		return "", "", Malformed("a row in another order: %.100s", row)
	}
	return text, object, nil
}

// Row is a row of a Table behind its lead (see rowLead). The metadata of its object may follow.
type Row []byte

// Row returns the row of an object that was parsed from a Table.
func (o *Object) Row() Row { return o.raw }

// Rendered returns the arrival time of a row. Upstream computed the ages shortly before.
func (r Row) Rendered() time.Time { return time.Unix(int64(binary.BigEndian.Uint64(r)), 0) }

func (r Row) end() int { return rowLead + int(binary.BigEndian.Uint32(r[rowLead-4:])) }

// Text returns the row without its object and the closing brace.
func (r Row) Text() []byte { return r[rowLead:r.end()] }

// Metadata returns the metadata that upstream showed in a row. made is the metadata made from the
// object. If it differs from the row's metadata and the cache does not keep the latter, Metadata
// returns [ErrMetadata]. The resourceVersion may differ: the metadata of an object that left a
// selection has the event's resourceVersion.
func (r Row) Metadata(made []byte) ([]byte, error) {
	if own := r[r.end():]; len(own) > 0 {
		return own, nil
	}
	if fingerprint(made) != binary.BigEndian.Uint64(r[8:]) {
		return nil, ErrMetadata
	}
	return made, nil
}

// ErrMetadata means that a row's metadata differs from its object's (see [InternalMetadata]).
var ErrMetadata = errors.New("a row has other metadata than its object")

func fingerprint(partial []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	at, digits := findVersion(partial)
	_, _ = h.Write(partial[:at]) // never fails
	_, _ = h.Write(partial[at+digits:])
	return h.Sum64()
}

var seed = maphash.MakeSeed()

func findVersion(partial []byte) (at, digits int) {
	v := gjson.GetBytes(partial, "metadata.resourceVersion")
	if v.Index == 0 || len(v.Raw) != len(v.Str)+2 {
		return len(partial), 0
	}
	return v.Index + 1, len(v.Str)
}

// parseTableBookmark reads a bookmark in the form of a Table. Its only row is the row of the kind's
// zero value. The bookmark's object is the row's, which has only metadata.
func (r *Resource) parseTableBookmark(src []byte) (*Bookmark, uint64, error) {
	table, row, err := r.splitEvent(src)
	if err != nil {
		return nil, 0, err
	}
	rv, err := ParseResourceVersion(table.Get("metadata.resourceVersion").Str)
	if err != nil {
		return nil, 0, err
	}
	text, partial, err := splitRow(row.Raw)
	if err != nil {
		return nil, 0, err
	}
	b, _, err := parseJSONBookmark([]byte(partial), false)
	if err == nil {
		b.row = []byte(text)
	}
	return b, rv, err
}

// Row returns a bookmark's row in a Table, without its object (see [Row.Text]).
func (b *Bookmark) Row() []byte { return bytes.Clone(b.row) }
