package proxy

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// Whatever the bytes, the proxy does not crash, and reads the same requests as the apiserver. A
// forwarded request arrives as the apiserver would have read it from the client. A request that the
// cache answers has the same meaning for the proxy and the apiserver. The proxy may refuse requests
// that the apiserver would accept, or close the connection.
func FuzzRawRequest(f *testing.F) {
	for _, seed := range rawSeeds {
		f.Add([]byte(strings.ReplaceAll(seed, "\n", "\r\n")), uint8(0))
		f.Add([]byte(strings.ReplaceAll(seed, "\n", "\r\n")), uint8(1))
	}
	for _, seed := range exactSeeds {
		f.Add([]byte(seed), uint8(0))
	}
	w := newParserDiff(f)
	f.Fuzz(func(t *testing.T, raw []byte, piece uint8) {
		const most = 32 << 10
		if len(raw) > most {
			t.Skip("too long")
		}
		x := w.send(t, raw, int(piece))
		for i, o := range x.outcomes {
			refused := !o.opened && !o.sent && i == len(x.outcomes)-1
			if i >= len(x.heard) && !refused && !w.hearsUnspaced(t, &x, i) {
				t.Fatalf("%q\nrequest %d is none to the apiserver: %v\nanswers: %.500q", x.raw, i, o, x.answers)
			}
			if i >= len(x.heard) {
				return
			}
			if err := o.contradicts(x.heard[i]); err != nil {
				t.Fatalf("%q\nrequest %d: %v", raw, i, err)
			}
		}
	})
}

// hearsUnspaced reports whether the apiserver would read the i-th request if there were no empty
// lines before it. The exchange continues without these lines. A server may skip empty lines (RFC
// 9112, 2.2): fasthttp does, net/http does not.
func (w *parserDiff) hearsUnspaced(tb testing.TB, x *rawExchange, i int) bool {
	tb.Helper()
	line := []byte(x.outcomes[i].method + " " + x.outcomes[i].target + " ")
	for at := range x.raw {
		if !bytes.HasPrefix(x.raw[at:], line) {
			continue
		}
		for from := at - 1; from >= 0 && (x.raw[from] == '\n' || x.raw[from] == '\r'); from-- {
			raw := slices.Concat(x.raw[:from], x.raw[at:])
			if heard := w.hearDirect(tb, raw); len(heard) > i && heard[i].target == x.outcomes[i].target {
				x.raw, x.heard = raw, heard
				return true
			}
		}
	}
	return false
}
