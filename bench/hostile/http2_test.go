package hostile

import (
	"net/http"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// The response is small and comes from the cache.
const oneRow = cachedList + "&fieldSelector=metadata.name%3D" + attackerSpace + "-00000"

// http2Floods are frames that cost the server more than the client. Package h2 tests that a server
// ends connections with wrong or too many frames.
func http2Floods() []behaviour {
	row := func(name string, rate int, do func(*attack, int)) behaviour {
		return behaviour{name: "HTTP2: " + name, clients: 4, most: 8, rate: rate, do: do}
	}
	authority := asAttacker()
	withStream := func(path string) func(*frames) bool {
		return func(f *frames) bool {
			_, ok := f.request(http.MethodPost, path, asAttacker("Content-Type", "application/json"), false)
			return ok
		}
	}
	return []behaviour{
		row("SETTINGS flood over 100 watches", 100, flood(50, opening(100, cachedWatch), func(f *frames, i int) bool {
			return f.frame(func() error { return f.WriteSettings(window(uint32(i % 2))) })
		})),
		row("CONTINUATION frames without an end", 100, flood(20, func(f *frames) bool {
			return f.frame(func() error {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.encoded(f.fields(http.MethodGet, oneRow, authority))})
			})
		}, func(f *frames, _ int) bool {
			return f.frame(func() error {
				return f.WriteContinuation(1, false, f.encoded([]hpack.HeaderField{{Name: "x", Value: strings.Repeat("y", 200)}}))
			})
		})),
		row("empty DATA frames", 100, flood(50, withStream(attackedConfigMaps), func(f *frames, _ int) bool {
			return f.frame(func() error { return f.WriteData(1, false, nil) })
		})),
		row("forwarded gets that are reset", 100, flood(50, nil, func(f *frames, i int) bool {
			const open = 50 // at a time
			stream, ok := f.get(attackedConfigMaps+"/"+made(int64(i)), authority)
			if stream > 2*open {
				ok = ok && f.frame(func() error { return f.WriteRSTStream(stream-2*open, http2.ErrCodeCancel) })
			}
			return ok
		})),
		row("WINDOW_UPDATE flood, a byte of a watch for each", 100, flood(50, opening(1, cachedWatch), func(f *frames, _ int) bool {
			return f.frame(func() error { return f.WriteWindowUpdate(1, 1) })
		})),
		row("a header of 3 KiB by reference, 5,000 times", 20, flood(1, nil, func(f *frames, _ int) bool {
			h := asAttacker()
			long := strings.Repeat("x", 3<<10)
			for range 5000 {
				h.Add("x-long", long) // a byte for each field after the first
			}
			_, ok := f.get(oneRow, h)
			return ok
		})),
		row("headers of 100 KiB", 50, flood(1, nil, func(f *frames, _ int) bool {
			h := asAttacker()
			for i := range 25 {
				h.Add("x-"+made(int64(i)), strings.Repeat("~", 4<<10))
			}
			_, ok := f.get(oneRow, h)
			return ok
		})),
	}
}

// opening opens streams without a window, and does nothing with them.
func opening(n int, path string) func(*frames) bool {
	return func(f *frames) bool {
		ok := f.frame(func() error { return f.WriteSettings(window(0)) })
		for range n {
			if ok {
				_, ok = f.get(path, asAttacker())
			}
		}
		return ok
	}
}
