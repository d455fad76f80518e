package table

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

var errUnexplained = errors.New("a cell that looks like an age is explained by no timestamp")

// appendRow appends a row that arrived at the time arrived, with the ages at the time now. It also
// returns the end of the last age in the result, and the time for which the ages stay the same.
func (r *Rules) appendRow(
	dst, row, object []byte, arrived, now time.Time,
) (_ []byte, agesEnd int, lasts time.Duration, err error) {
	lasts = forever
	cells, done, i := gjson.GetBytes(row, "cells"), 0, 0
	if !cells.IsArray() {
		return dst, 0, 0, fmt.Errorf("row %.40q without cells", row)
	}
	cells.ForEach(func(_, cell gjson.Result) bool {
		var since time.Time
		var prefix, suffix string
		if since, prefix, suffix, err = r.age(i, cell, object, arrived); err != nil {
			return false
		}
		if i++; since.IsZero() {
			return true
		}
		dst = append(dst, row[done:cell.Index]...)
		age := now.Sub(since)
		// Package json has upstream's escapes, and strings can always be encoded.
		quoted, _ := json.Marshal(prefix + duration.HumanDuration(age) + suffix)
		dst = append(dst, quoted...)
		agesEnd = len(dst)
		done, lasts = cell.Index+len(cell.Raw), min(lasts, changes(age))
		return true
	})
	return append(dst, row[done:]...), agesEnd, lasts, err
}

// forever is the time for which a row without ages stays the same.
const forever time.Duration = 1<<63 - 1

// age returns the timestamp whose age a cell shows, and the text around that age. The timestamp is
// zero if the cell does not change with time.
func (r *Rules) age(
	i int, cell gjson.Result, item []byte, arrived time.Time,
) (since time.Time, prefix, suffix string, err error) {
	c := column{age: sinceCreation} // upstream's rows of ipaddresses have an age without a column
	if i < len(r.columns) {
		c = r.columns[i]
	}
	// Most cells are no ages, so this comes first.
	if cell.Type != gjson.String || !object.LooksLikeAge(cell.Str) {
		return since, "", "", nil
	}
	text := cell.Str
	if inner, ok := strings.CutSuffix(text, " ago)"); ok {
		at := strings.LastIndexByte(inner, '(') + 1
		text, prefix, suffix = inner[at:], inner[:at], " ago)"
	}
	if c.age != noAge {
		start := created
		if c.age == sinceTermination {
			start = terminated
		}
		if t := start(item); !t.IsZero() && explains(t, text, arrived) {
			return t, prefix, suffix, nil
		}
	} else if r.custom || r.builtin && bytes.Contains(item, []byte(cell.Raw)) {
		return since, "", "", nil
	}
	err = fmt.Errorf("%w: %q in column %s, of a row that arrived at %s",
		errUnexplained, cell.Str, c.name, arrived)
	return since, "", "", err
}
