package access

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// identity returns the parts of a user that are the same in all requests with the same credentials.
// They include the id of a token or a certificate.
func identity(of cluster.AuditUser) string {
	groups := slices.Sorted(slices.Values(of.Groups))
	return fmt.Sprintf("%s uid=%s groups=%v extra=%v", of.Username, of.UID, groups, of.Extra)
}

// named returns the request with a unique id for the audit log.
func (r request) named() (request, string) {
	id := uuid.NewString()
	h := r.header.Clone()
	if h == nil {
		h = map[string][]string{}
	}
	h.Set("Audit-ID", id)
	r.header = h
	return r, id
}

// recorded waits for the first record of a request.
func (w *world) recorded(t *testing.T, id string) cluster.AuditRecord {
	t.Helper()
	var found []cluster.AuditRecord
	cluster.Eventually(t, "audit record "+id, func() bool {
		found = slices.DeleteFunc(responses(w.audit.PeekT(t)), func(r cluster.AuditRecord) bool { return !strings.EqualFold(r.AuditID, id) })
		return len(found) > 0
	})
	return found[0]
}

// responses returns the records of the later stages. The first stage, when a request is received,
// comes before impersonation.
func responses(all []cluster.AuditRecord) []cluster.AuditRecord {
	return slices.DeleteFunc(all, func(r cluster.AuditRecord) bool { return r.Stage == "RequestReceived" })
}
