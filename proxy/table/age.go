package table

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

const (
	// lag is the longest time between the moment at which upstream rendered a row and its arrival.
	lag = time.Minute
	// skew is the largest difference between upstream's clock and this one.
	skew = 2 * time.Second
)

// explains tells whether an age since a timestamp was written as text in a row that arrived at
// arrived.
func explains(since time.Time, text string, arrived time.Time) bool {
	if duration.HumanDuration(arrived.Sub(since)) == text {
		return true
	}
	for at := skew; at >= -lag; at -= time.Second {
		if duration.HumanDuration(arrived.Add(at).Sub(since)) == text {
			return true
		}
	}
	return false
}

// units are the units in which ages are written, each up to a limit.
var units = []struct{ below, unit time.Duration }{
	{10 * time.Minute, time.Second}, {8 * time.Hour, time.Minute}, {8 * day, time.Hour}, {8 * year, day}, {1<<63 - 1, year},
}

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// changes returns how long an age is written in the same way, at least.
func changes(age time.Duration) time.Duration {
	for _, u := range units {
		if age >= 0 && age < u.below {
			return u.unit - age%u.unit
		}
	}
	return time.Second // in the future
}

// looksLikeAge tells whether a cell could be an age, or end in one: "5m", "3 (2d4h ago)".
func looksLikeAge(text string) bool {
	if inner, ok := strings.CutSuffix(text, " ago)"); ok {
		text = inner[strings.LastIndexByte(inner, '(')+1:]
	}
	const longest = len("999y364d")
	digits, unit := 0, false
	for i := range len(text) {
		switch c := text[i]; {
		case c >= '0' && c <= '9':
			digits++
			unit = false
		case strings.IndexByte("smhdy", c) >= 0 && digits > 0 && !unit:
			unit = true
		default:
			return false
		}
	}
	return unit && len(text) <= longest
}
