package table

import (
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/watchproxy/watchproxy/watchcache/object"
)

// lag is the maximum time from the rendering of a row upstream to its arrival here.
const lag = time.Minute

// explains reports whether text is the age of since in a row that arrived at arrived.
func explains(since time.Time, text string, arrived time.Time) bool {
	if duration.HumanDuration(arrived.Sub(since)) == text {
		return true
	}
	for at := object.ClockSkew; at >= -lag; at -= time.Second {
		if duration.HumanDuration(arrived.Add(at).Sub(since)) == text {
			return true
		}
	}
	return false
}

// units are the units of ages. Each unit is used up to a limit.
var units = []struct{ below, unit time.Duration }{
	{10 * time.Minute, time.Second},
	{8 * time.Hour, time.Minute},
	{8 * day, time.Hour},
	{8 * year, day},
	{1<<63 - 1, year},
}

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// changes returns a lower bound of the time for which the text of an age stays the same.
func changes(age time.Duration) time.Duration {
	for _, u := range units {
		if age >= 0 && age < u.below {
			return u.unit - age%u.unit
		}
	}
	return time.Second // the timestamp is in the future
}
