package table

import (
	"regexp"
	"time"

	"github.com/tidwall/gjson"
)

// datesMost is the maximum number of date columns that are followed: each is looked up alone.
const datesMost = 16

const created = "metadata.creationTimestamp"

// plain matches the JSONPaths that consist of names of fields. Gjson reads them in the same way.
// Dots of a name are escaped, as in .metadata.annotations.example\.com/at.
var plain = regexp.MustCompile(`^(\.[A-Za-z_]([A-Za-z0-9_/-]|\\\.)*)+$`)

// addDate adds a custom resource's column of dates. If a custom resource defines no columns, its
// rows show its age.
func (r *Rules) addDate(c column, paths []string, index int) {
	switch i := index - 1; {
	case len(paths) == 0 && index == 1:
		c.since = path(created)
	case i < 0 || i >= len(paths):
		c.since = path()
	case plain.MatchString(paths[i]):
		c.since = path(paths[i][1:])
	default:
		r.left = true
	}
	r.dates++
	r.left = r.left || r.dates > datesMost
	r.columns = append(r.columns, c)
}

// path returns a function that returns the first timestamp found at one of several paths.
func path(paths ...string) func([]byte) []time.Time {
	return func(object []byte) []time.Time {
		for _, p := range paths {
			if t, ok := timestamp(gjson.GetBytes(object, p).Str); ok {
				return []time.Time{t}
			}
		}
		return nil
	}
}

func timestamp(text string) (t time.Time, ok bool) {
	t, err := time.Parse(time.RFC3339, text)
	return t, err == nil && text != ""
}
