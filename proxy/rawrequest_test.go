package proxy

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// Whatever bytes come, the proxy does not fail, and hears no other requests than
// the apiserver would if it got the same bytes: each one that it forwards arrives
// as the apiserver would have heard it from the client, and each one for which a
// cache is asked means to the apiserver what the cache is asked for. It may refuse
// or break off what the apiserver would have taken.
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

// hearsUnspaced tells whether the apiserver would hear the request of the i-th
// outcome, too, were it not for empty lines in front of it, and then goes on without
// those. A server may skip them (RFC 9112, 2.2): fasthttp does, net/http does not.
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
