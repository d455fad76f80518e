package cluster

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"os"
	"testing"
	"time"
)

// AuditRecord is what the apiserver's audit log tells about a request.
type AuditRecord struct {
	AuditID                  string
	Stage                    string
	Verb                     string
	RequestURI               string
	UserAgent                string
	RequestReceivedTimestamp time.Time
	User                     AuditUser
	ImpersonatedUser         *AuditUser
	ObjectRef                struct{ APIGroup, Resource, Namespace string }
	ResponseStatus           struct{ Code int }
}

// AuditUser is who asks.
type AuditUser struct {
	Username string
	UID      string
	Groups   []string
	Extra    map[string][]string
}

// Effective is whose rights counted.
func (r AuditRecord) Effective() AuditUser {
	if r.ImpersonatedUser != nil {
		return *r.ImpersonatedUser
	}
	return r.User
}

// AuditLog reads an audit log as it is written, from the first record on.
type AuditLog struct {
	Path string
	at   int64
}

// SkipT passes over what was written so far, without reading it: the log of many tests is long.
func (l *AuditLog) SkipT(tb testing.TB) {
	tb.Helper()
	info, err := os.Stat(l.Path)
	if err != nil {
		tb.Fatal(err)
	}
	l.at = info.Size()
}

// NextT returns the records that were written since it was called last, or SkipT.
func (l *AuditLog) NextT(tb testing.TB) (all []AuditRecord) {
	tb.Helper()
	all, l.at = l.read(tb)
	return all
}

// PeekT is NextT without going on.
func (l *AuditLog) PeekT(tb testing.TB) (all []AuditRecord) {
	tb.Helper()
	all, _ = l.read(tb)
	return all
}

// read returns what stands in the log, but for a last record that is being written, and where that ends.
func (l *AuditLog) read(tb testing.TB) (all []AuditRecord, end int64) {
	tb.Helper()
	file, err := os.Open(l.Path)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(io.NewSectionReader(file, l.at, math.MaxInt64-l.at))
	if err != nil {
		tb.Fatal(err)
	}
	end = l.at
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		end += int64(len(line))
		var r AuditRecord
		if err := json.Unmarshal(line, &r); err == nil { // else a kill, or SkipT, has cut it
			all = append(all, r)
		}
	}
	return all, end
}
