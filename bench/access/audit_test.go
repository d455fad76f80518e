package access

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// record is what the apiserver's audit log tells about a request.
type record struct {
	AuditID          string
	Verb             string
	User             identity
	ImpersonatedUser *identity
}

// identity is who asks.
type identity struct {
	Username string
	UID      string
	Groups   []string
	Extra    map[string][]string
}

// effective is whose rights counted.
func (r record) effective() identity {
	if r.ImpersonatedUser != nil {
		return *r.ImpersonatedUser
	}
	return r.User
}

// String shows all of an identity that is the same for two requests: a token's own id is, a certificate's too.
func (i identity) String() string {
	groups := slices.Sorted(slices.Values(i.Groups))
	return fmt.Sprintf("%s uid=%s groups=%v extra=%v", i.Username, i.UID, groups, i.Extra)
}

// named is a request with an id of its own in the audit log.
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

// skipRecords makes recorded look only at what comes from now on: the log of all tests is long.
func (w *world) skipRecords(t *testing.T) {
	t.Helper()
	log, err := os.Stat(w.audit)
	if err != nil {
		t.Fatal(err)
	}
	w.audited = log.Size()
}

// recorded waits for the first record of a request.
func (w *world) recorded(t *testing.T, id string) record {
	t.Helper()
	var r record
	eventually(t, "audit record "+id, func() bool {
		records := w.records(t, id)
		if len(records) > 0 {
			r = records[0]
		}
		return len(records) > 0
	})
	return r
}

// records are those that a request has so far.
func (w *world) records(t *testing.T, id string) (all []record) {
	t.Helper()
	file, err := os.Open(w.audit)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Seek(w.audited, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	log, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(log) {
		if !bytes.Contains(line, []byte(id)) || !bytes.HasSuffix(line, []byte("\n")) {
			continue
		}
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("audit log: %q: %v", line, err)
		}
		if strings.EqualFold(r.AuditID, id) {
			all = append(all, r)
		}
	}
	return all
}
