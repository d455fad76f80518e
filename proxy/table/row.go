package table

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/util/duration"
)

// ErrUnexplained says that a cell looks like an age and that no timestamp explains it.
var ErrUnexplained = errors.New("a cell that looks like an age is explained by no timestamp")

// appendRow appends a row with the ages of now. The row arrived at arrived. It also returns the end
// of the last age in the result, and for how long the ages stay the same.
func (r *Rules) appendRow(dst, row, object []byte, arrived, now time.Time) (_ []byte, agesEnd int, lasts time.Duration, err error) {
	lasts = forever
	const before = len(`{"cells":`)
	if len(row) < before {
		return dst, 0, 0, fmt.Errorf("row %.40q without cells", row)
	}
	cells, done, i := gjson.ParseBytes(row[before:]), 0, 0
	cells.ForEach(func(_, cell gjson.Result) bool {
		var since time.Time
		var prefix, suffix string
		if since, prefix, suffix, err = r.age(i, cell, object, arrived); err != nil {
			return false
		}
		if i++; since.IsZero() {
			return true
		}
		at := before + cell.Index
		dst = append(dst, row[done:at]...)
		age := now.Sub(since)
		dst = appendQuoted(dst, prefix+duration.HumanDuration(age)+suffix)
		agesEnd = len(dst)
		done, lasts = at+len(cell.Raw), min(lasts, changes(age))
		return true
	})
	return append(dst, row[done:]...), agesEnd, lasts, err
}

// forever is how long a row without ages stays the same.
const forever time.Duration = 1<<63 - 1

// appendQuoted appends a JSON string as upstream escapes it.
func appendQuoted(dst []byte, text string) []byte {
	quoted, _ := json.Marshal(text) // a string always has a form
	return append(dst, quoted...)
}

// age returns the timestamp whose age a cell shows, and the text around that age. It is zero if the
// cell does not change with time.
func (r *Rules) age(i int, cell gjson.Result, object []byte, arrived time.Time) (since time.Time, prefix, suffix string, err error) {
	c := column{since: path(created)} // upstream's rows of ipaddresses have an age without a column
	if i < len(r.columns) {
		c = r.columns[i]
	}
	if cell.Type != gjson.String || c.fixed != nil && c.fixed(object) {
		return since, "", "", nil
	}
	text := cell.Str
	if inner, ok := strings.CutSuffix(text, " ago)"); ok {
		at := strings.LastIndexByte(inner, '(') + 1
		text, prefix, suffix = inner[at:], inner[:at], " ago)"
	}
	if c.since != nil {
		times := c.since(object)
		for _, t := range times {
			if explains(t, text, arrived) {
				return t, prefix, suffix, nil
			}
		}
		if !looksLikeAge(cell.Str) {
			return since, "", "", nil
		}
	} else if r.custom || !looksLikeAge(cell.Str) || r.builtin && isValue(object, cell.Raw) {
		return since, "", "", nil
	}
	return since, "", "", fmt.Errorf("%w; is this machine's clock right? %q in column %s, of a row that arrived at %s", ErrUnexplained, cell.Str, c.name, arrived)
}
