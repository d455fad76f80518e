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

// AuditRecord is a request in the apiserver's audit log.
type AuditRecord struct {
	AuditID                  string
	Stage                    string
	Verb                     string
	RequestURI               string
	UserAgent                string
	RequestReceivedTimestamp time.Time
	User                     AuditUser
	ImpersonatedUser         *AuditUser
	ObjectRef                struct{ APIGroup, Resource, Subresource, Namespace string }
	ResponseStatus           struct{ Code int }
}

// AuditUser is the user of a request.
type AuditUser struct {
	Username string
	UID      string
	Groups   []string
	Extra    map[string][]string
}

// Effective returns the user whose rights the apiserver checked.
func (r AuditRecord) Effective() AuditUser {
	if r.ImpersonatedUser != nil {
		return *r.ImpersonatedUser
	}
	return r.User
}

// AuditLog reads an audit log, from the first record on, while the apiserver writes it.
type AuditLog struct {
	Path string
	at   int64
}

// SkipT skips the records so far without reading them, because a log shared by many tests is long.
func (l *AuditLog) SkipT(tb testing.TB) {
	tb.Helper()
	info, err := os.Stat(l.Path)
	MustT(tb, err)
	l.at = info.Size()
}

// NextT returns the records since the last call of NextT or SkipT.
func (l *AuditLog) NextT(tb testing.TB) (all []AuditRecord) {
	tb.Helper()
	all, l.at = l.read(tb)
	return all
}

// PeekT returns the same records as NextT, but the next call returns them again.
func (l *AuditLog) PeekT(tb testing.TB) (all []AuditRecord) {
	tb.Helper()
	all, _ = l.read(tb)
	return all
}

// read returns the complete records in the log, and the offset of their end.
func (l *AuditLog) read(tb testing.TB) (all []AuditRecord, end int64) {
	tb.Helper()
	text, end, err := LinesFrom(l.Path, l.at)
	MustT(tb, err)
	for line := range bytes.Lines(text) {
		var r AuditRecord
		// Otherwise a kill or SkipT has cut off the record.
		if err := json.Unmarshal(line, &r); err == nil {
			all = append(all, r)
		}
	}
	return all, end
}

// LinesFrom returns the complete lines of a file from an offset on, and the offset of their end.
func LinesFrom(path string, at int64) (lines []byte, end int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, at, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(io.NewSectionReader(file, at, math.MaxInt64-at))
	lines = text[:bytes.LastIndexByte(text, '\n')+1]
	return lines, at + int64(len(lines)), err
}
