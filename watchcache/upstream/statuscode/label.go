// Package statuscode has the values of the metrics' label code.
package statuscode

import (
	"net/http"
	"strconv"
)

// noAnswer and clientLeft are the codes of requests without a response. No standard has them.
const (
	noAnswer   = 0
	clientLeft = 499
)

// Label returns the label of a status code. A pod or an aggregated API may answer with any code, so
// a code that net/http does not know has its class as its label, such as 5xx. There are fewer than
// 100 labels.
func Label(code int) string {
	if code == noAnswer || code == clientLeft || http.StatusText(code) != "" {
		return strconv.Itoa(code)
	}
	const class = 100
	return strconv.Itoa(code/class) + "xx"
}
