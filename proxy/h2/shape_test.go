package h2

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"

	"github.com/watchproxy/watchproxy/bench/cachetest"
)

// shape is a request and the behaviour of its handler.
type shape struct {
	method, target, host string // no target or host: the field is omitted
	header               []hpack.HeaderField
	hasBody              bool
	body                 []byte
	declared             int // the content-length; below 0 for none
	trailers             []hpack.HeaderField
	holds                bool // the client ends its side only after the response has ended
	pad, piece           int  // padding and sizes of frames
	cancels              bool // the client cancels when the handler has responded partly, or waits
	started              chan struct{}
	read                 chan struct{} // closed when the handler has read its part of the body

	reads  int // bytes of the body; below 0 for all
	status int
	fields http.Header
	answer []byte
	kind   kind
	pieces int
	fails  bool // the response breaks after its bytes
}

// kind is the kind of body that the handler returns.
type kind int

const (
	inBytes kind = iota
	inList
	inEndlessList // of unknown length
	inReader
	inEndlessReader
	inStream
	kinds
)

func (k kind) known() bool { return k == inBytes || k == inList || k == inReader }

// pick returns one of several values.
func pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

func bytesOf(random *rand.Rand, most int) []byte {
	if random.IntN(4) == 0 {
		return nil
	}
	p := make([]byte, cachetest.AnySize(random, most))
	for i := range p {
		p[i] = 'a' + byte(i*7%26)
	}
	p[random.IntN(len(p))] = byte(random.IntN(256))
	return p
}

func newShape(random *rand.Rand, number int, alone bool) *shape {
	one := func(in int) bool { return random.IntN(in) == 0 }
	s := &shape{
		method: pick(random, "GET", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"),
		target: pick(random, "/", "/api/v1/pods", "/a%20b/%2F", "/a//b/../c", "/%C3%A9", "/"+strings.Repeat("p/", 500)) +
			pick(random, "", "", "?watch=0&limit=5", "?a=b&a=c;d=%26", "?"+strings.Repeat("q=1&", 1000), "?"),
		host: pick(random, "a", "a.example:443", "[::1]:6443"), declared: -1, started: make(chan struct{}), read: make(chan struct{}),
		pieces: 1 + random.IntN(5), piece: 16000, kind: kind(random.IntN(int(kinds))),
		status: pick(random, 200, 200, 200, 201, 204, 304, 301, 400, 404, 410, 429, 500, 503),
		answer: bytesOf(random, 1<<20),
	}
	s.header = []hpack.HeaderField{{Name: "x-shape", Value: strconv.Itoa(number)}}
	for range pick(random, 0, 1, 5, 50) {
		s.header = append(s.header, hpack.HeaderField{
			Name:  pick(random, "x-a", "x-b", "accept", "x-"+strconv.Itoa(random.IntN(100))),
			Value: strings.Repeat(pick(random, "v", "v ", "é", ","), random.IntN(pick(random, 2, 20, 500))) + "e",
		})
	}
	if one(8) {
		s.header = append(s.header, hpack.HeaderField{Name: "x-long", Value: strings.Repeat("l", 30<<10)})
	}
	s.fields = http.Header{}
	for range pick(random, 0, 1, 5, 50) {
		s.fields.Add(pick(random, "X-A", "X-B", "Content-Type", "Warning", "X-"+strconv.Itoa(random.IntN(100))),
			strings.Repeat(pick(random, "v", "é", ","), random.IntN(pick(random, 2, 20, 2000)))+"e")
	}
	if s.kind == inStream { // like a watch
		s.method, s.status = "GET", 200
	}
	if s.hasBody = s.method != "GET" && s.method != "HEAD" && one(2); s.hasBody {
		s.body = bytesOf(random, 1<<20)
		if s.declared = len(s.body); one(2) {
			s.declared = -1
		}
		s.reads = pick(random, -1, -1, 0, random.IntN(len(s.body)+1))
	}
	s.fails = one(12) && s.method != "HEAD" && (s.kind == inReader || s.kind == inEndlessReader)
	s.cancels = one(10) && s.method != "HEAD" && (s.kind == inBytes || s.kind == inEndlessReader) && !s.fails && (!s.hasBody || s.reads < 0)
	if s.status == 204 || s.status == 304 {
		s.fails, s.cancels = false, false
	}
	s.unusual(random, alone)
	if !s.hasBody { // a handler here gets none, where net/http's could read an empty one
		s.declared, s.reads, s.trailers, s.holds = -1, -1, nil, false
	}
	if s.declared >= 0 {
		s.header = append(s.header, hpack.HeaderField{Name: "content-length", Value: strconv.Itoa(s.declared)})
	}
	return s
}

// unusual adds parts that Go's clients do not send. A shape that ends its connection must be
// alone.
func (s *shape) unusual(random *rand.Rand, alone bool) {
	one := func(in int) bool { return random.IntN(in) == 0 }
	add := func(name, value string) { s.header = append(s.header, hpack.HeaderField{Name: name, Value: value}) }
	odd := -1
	if alone {
		odd = random.IntN(24)
	}
	if odd >= 0 {
		s.cancels = false
	}
	// Net/http ends a connection that sends the body of a malformed request.
	if odd >= 0 && odd < 6 {
		s.hasBody = false
	}
	if one(4) {
		s.pad = 1 + random.IntN(255)
	}
	if one(4) {
		s.piece = 16 + cachetest.AnySize(random, 16000)
	}
	if one(8) {
		add("cookie", "a=b")
		add("x-between", "1")
		add("cookie", "c=d; e=f")
	}
	if one(8) {
		add("te", "trailers")
	}
	if s.hasBody && one(3) {
		add("expect", "100-continue")
	}
	// Net/http ends a connection whose trailers cross the response.
	if s.hasBody && s.reads < 0 && one(4) {
		s.trailers = []hpack.HeaderField{{Name: "x-trailer", Value: strings.Repeat("t", random.IntN(100))}}
	}
	if s.hasBody && s.reads >= 0 {
		s.holds = one(2)
	}
	switch odd {
	case 0:
		s.method, s.target = "OPTIONS", "*"
	case 1:
		// Net/http also accepts absolute targets, and * for any method.
		s.target = pick(random, "", "nothing")
	case 2:
		s.method = pick(random, "", "CONNECT", "G T")
	case 3:
		add(pick(random, "connection", "te", "upgrade", "transfer-encoding", "X-Upper", "x y", ":path", "keep-alive"), "close")
	case 4:
		s.host = ""
		add("host", "other")
	case 5:
		for range 70 { // a byte for each field, once the table has the field
			add("x-huge", strings.Repeat("h", 1<<10))
		}
	case 6:
		if s.hasBody && s.reads < 0 && len(s.body) > 0 && !s.expects() {
			s.declared = len(s.body) - 1 - random.IntN(len(s.body)) // the rest exceeds the length
		}
	}
}

func (s *shape) expects() bool {
	return slices.ContainsFunc(s.header, func(f hpack.HeaderField) bool { return f.Name == "expect" })
}

// fieldsOf returns the fields of the request's HEADERS.
func (s *shape) fieldsOf() (all []hpack.HeaderField) {
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: s.method},
		{Name: ":scheme", Value: "http"},
		{Name: ":authority", Value: s.host},
		{Name: ":path", Value: s.target},
	} {
		if f.Value != "" {
			all = append(all, f)
		}
	}
	return append(all, s.header...)
}
