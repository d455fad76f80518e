package wire

import (
	"mime"
	"strings"
)

// ContentTypeJSON is the Content-Type of every JSON response.
const ContentTypeJSON = "application/json"

// sortedMax is how many clauses kube-apiserver keeps in order: it sorts them by
// an unstable algorithm that happens to be stable up to here.
const sortedMax = 12

// PlainJSON tells whether kube-apiserver would answer a request with this
// Accept header in plain, compact JSON. False also where that is in doubt: the
// apiserver then decides itself.
//
// Clauses count by their q-value, then wildcards count last, then in their
// order. So it is settled if the first clause names JSON and none has
// parameters, or if every clause would do.
func PlainJSON(accept string) bool {
	if accept == "" {
		return true
	}
	clauses := strings.Split(accept, ",")
	if len(clauses) > sortedMax {
		return false
	}
	if strings.Trim(clauses[0], " ") == ContentTypeJSON && !strings.Contains(accept, ";") {
		return true
	}
	for _, clause := range clauses {
		if !plainClause(clause) {
			return false
		}
	}
	return true
}

func plainClause(clause string) bool {
	written, _, _ := strings.Cut(clause, ";")
	mediaType, params, err := mime.ParseMediaType(clause)
	if err != nil || (mediaType != ContentTypeJSON && mediaType != "*/*") || mediaType != strings.Trim(written, " ") {
		return false // in other letters, upstream does not take it for JSON
	}
	for name, value := range params {
		switch name {
		case "charset":
		case "q":
			if !strings.HasPrefix(value, "0.") && value != "1" && value != "1.0" || strings.Trim(value, "0.") == "" {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// Pretty tells whether kube-apiserver would indent the response: it does so for
// people at a terminal or in a browser, and when asked to.
func Pretty(parameter, userAgent string) bool {
	if parameter != "" {
		return parameter != "0" && !strings.EqualFold(parameter, "false")
	}
	for _, human := range []string{"curl", "Wget", "Mozilla/5.0"} {
		if strings.HasPrefix(userAgent, human) {
			return true
		}
	}
	return false
}
