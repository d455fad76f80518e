package h2

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// tableSize limits a table of header fields (HPACK), in bytes. It is the protocol's default.
const tableSize = 4096

type encoder struct {
	fields *hpack.Encoder
	block  bytes.Buffer
}

func newEncoder() *encoder {
	e := &encoder{}
	e.fields = hpack.NewEncoder(&e.block)
	return e
}

func (e *encoder) Resize(limit uint32) {
	e.fields.SetMaxDynamicTableSizeLimit(limit)
	e.fields.SetMaxDynamicTableSize(min(limit, tableSize))
}

// field encodes a field. Values that differ in each response stay out of the table.
func (e *encoder) field(name, value string) {
	once := name == "audit-id" || name == "content-length" || name == "date"
	// A write to memory cannot fail.
	_ = e.fields.WriteField(hpack.HeaderField{
		Name:      name,
		Value:     value,
		Sensitive: once,
	})
}

// answer encodes the header of a response. A negative length means that the length is unknown.
func (e *encoder) answer(resp *exchange.Response, length int64) {
	e.block.Reset()
	e.field(":status", strconv.Itoa(resp.Status))
	for name, values := range resp.Header {
		switch name {
		case "Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade":
			continue
		}
		for _, v := range values {
			e.field(lower(name), v)
		}
	}
	if length >= 0 && resp.Status != http.StatusNoContent &&
		resp.Status != http.StatusNotModified && resp.Header.Get("Content-Length") == "" {
		e.field("content-length", strconv.FormatInt(length, 10))
	}
	if resp.Header.Get("Date") == "" {
		e.field("date", time.Now().UTC().Format(http.TimeFormat))
	}
}

// goOn encodes 100 Continue, which asks the client for the body that it announced.
func (e *encoder) goOn() {
	e.block.Reset()
	e.field(":status", strconv.Itoa(http.StatusContinue))
}

// appendBlock appends the encoded header in frames of up to most bytes; after end, no body follows.
func (e *encoder) appendBlock(b []byte, id uint32, end bool, most int) []byte {
	var flags http2.Flags
	if end {
		flags = http2.FlagHeadersEndStream
	}
	for kind := http2.FrameHeaders; ; kind, flags = http2.FrameContinuation, 0 {
		piece := e.block.Next(most)
		if e.block.Len() == 0 {
			flags |= http2.FlagHeadersEndHeaders
		}
		b = append(appendHead(b, len(piece), kind, flags, id), piece...)
		if e.block.Len() == 0 {
			return b
		}
	}
}

// lowered has the lower-case names of common fields. They are not converted for each response.
var lowered = func() map[string]string {
	names := map[string]string{}
	for _, name := range []string{
		"Audit-Id", "Cache-Control", "Content-Encoding", "Content-Length", "Content-Type", "Date",
		"Vary", "Warning",
		"X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid",
	} {
		names[name] = strings.ToLower(name)
	}
	return names
}()

func lower(name string) string {
	if l, ok := lowered[name]; ok {
		return l
	}
	return strings.ToLower(name)
}

// readRequest returns the request that begins with f. The error is a StreamError.
func readRequest(f *http2.MetaHeadersFrame) (*exchange.Request, error) {
	wrong := http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
	req := &exchange.Request{
		Method: f.PseudoValue("method"),
		Target: f.PseudoValue("path"),
		Host:   f.PseudoValue("authority"),
		Header: make(http.Header, len(f.Fields)),
	}
	switch {
	case req.Method == "", req.Target == "", f.PseudoValue("scheme") == "":
		return nil, wrong
	case req.Method == http.MethodConnect, f.PseudoValue("protocol") != "":
		return nil, wrong
	case req.Target[0] != '/' && (req.Target != "*" || req.Method != http.MethodOptions):
		return nil, wrong
	}
	var cookies []string // a client may send the field in pieces
	for _, field := range f.RegularFields() {
		switch field.Name {
		case "cookie":
			cookies = append(cookies, field.Value)
			continue
		case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
			return nil, wrong
		case "te":
			if field.Value != "trailers" {
				return nil, wrong
			}
		}
		req.Header.Add(field.Name, field.Value)
	}
	if len(cookies) > 0 {
		req.Header.Set("Cookie", strings.Join(cookies, "; "))
	}
	if req.Host == "" {
		req.Host = req.Header.Get("Host")
	}
	req.Header.Del("Host")
	req.SplitTarget()
	return req, nil
}

func contentLength(h http.Header) int64 {
	if n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		return n
	}
	return -1
}
