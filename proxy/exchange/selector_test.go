package exchange

import (
	"errors"
	"strings"
	"testing"
)

// Reads with a selector that is too long are forwarded before the selector is parsed.
func TestLongSelectorsAreForwarded(t *testing.T) {
	many := func(term string, n int) string { return strings.TrimSuffix(strings.Repeat(term+",", n), ",") }
	for query, forwarded := range map[string]bool{
		"labelSelector=" + many("!k", selectorTerms):                 false,
		"labelSelector=" + many("!k", selectorTerms+1):               true,
		"labelSelector=k in (" + many("v", selectorTerms+1) + ")":    true,
		"fieldSelector=" + many("metadata.name!=a", selectorTerms+1): true,
	} {
		if _, err := Parse(query); errors.Is(err, ErrDoubtful) != forwarded {
			t.Errorf("%.30s… of %d bytes: %v", query, len(query), err)
		}
	}
}
