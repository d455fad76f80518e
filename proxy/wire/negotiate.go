package wire

import (
	"mime"
	"strings"
)

// ContentTypeJSON is the Content-Type of every JSON response.
const ContentTypeJSON = "application/json"

// PlainJSON tells whether kube-apiserver would answer a request with this
// Accept header in plain, compact JSON. False also where that is in doubt: the
// apiserver then decides itself.
//
// Clauses count by their q-value and then by their order; the first one that
// names JSON without a transformation, or anything, settles it.
func PlainJSON(accept string) bool {
	if accept == "" {
		return true
	}
	first, rest, _ := strings.Cut(accept, ",")
	if strings.Contains(rest, "q=") || strings.Contains(first, "q=") {
		// Order is not precedence any more.
		return plainByQuality(accept)
	}
	return plainClause(first)
}

func plainByQuality(accept string) bool {
	// Without a doubt only if every clause would do.
	for clause := range strings.SplitSeq(accept, ",") {
		if !plainClause(clause) {
			return false
		}
	}
	return true
}

func plainClause(clause string) bool {
	mediaType, params, err := mime.ParseMediaType(clause)
	if err != nil || (mediaType != ContentTypeJSON && mediaType != "*/*") {
		return false
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
