package wire

import (
	"net/url"
	"strings"
)

// parametersMost is the largest number of parameters that url.ParseQuery reads.
const parametersMost = 10000

// Parameter returns the first value of a query parameter, as url.ParseQuery does. The name consists
// of letters. The other parameters are not kept, so a long query of an unknown client costs little.
// The malformed parts of a query do not count, as in kube-apiserver.
func Parameter(query, name string) (value string, ok bool) {
	if strings.Count(query, "&") >= parametersMost {
		return "", false
	}
	for pair := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(pair, "=")
		named := len(key) >= len(name) && (key == name || isEscaped(key, name))
		if !named || strings.Contains(pair, ";") {
			continue
		}
		if value, err := url.QueryUnescape(value); err == nil {
			return value, true
		}
	}
	return "", false
}

func isEscaped(key, name string) bool {
	if strings.IndexByte(key, '%') < 0 {
		return false
	}
	unescaped, err := url.QueryUnescape(key)
	return err == nil && unescaped == name
}
