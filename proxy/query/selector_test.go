package query

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// terms returns a label selector of n requirements that matches objects without labels.
func terms(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("!k%d", i)
	}
	return strings.Join(all, ",")
}

// Reads with a selector that is too long are forwarded before the selector is parsed.
func TestLongSelectorsAreForwarded(t *testing.T) {
	values := "k in (" + strings.TrimSuffix(strings.Repeat("v,", selectorTerms+1), ",") + ")"
	fields := strings.TrimSuffix(strings.Repeat("metadata.name!=a,", selectorTerms+1), ",")
	for query, forwarded := range map[string]bool{
		"labelSelector=" + terms(selectorTerms):   false,
		"labelSelector=" + terms(selectorTerms+1): true,
		"labelSelector=" + values:                 true,
		"fieldSelector=" + fields:                 true,
	} {
		if _, err := Parse(query); errors.Is(err, ErrDoubtful) != forwarded {
			t.Errorf("%.30s… of %d bytes: %v", query, len(query), err)
		}
	}
}
