package object

import "strings"

// invalidAge is the age of a future time, and in a custom resource of a value that is no time.
const invalidAge = "<invalid>"

// LooksLikeAge reports whether a cell may be or contain an age, for example "5m", "5m ago",
// "in 5m" or "3 (2d4h ago)".
func LooksLikeAge(text string) bool {
	if inner, ok := strings.CutSuffix(text, " ago)"); ok {
		text = inner[strings.LastIndexByte(inner, '(')+1:]
	}
	text = strings.TrimPrefix(strings.TrimSuffix(text, " ago"), "in ")
	if text == invalidAge {
		return true
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
