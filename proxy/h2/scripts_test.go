package h2

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// within returns a scene whose clients have little time.
func within(d time.Duration) scene {
	return scene{limits: func(l *exchange.Limits) { l.Stall, l.Write, l.Read = d, d, d }}
}

func window(n uint32) scene { return scene{settings: windows(n)} }

func windows(n uint32) []http2.Setting {
	return []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: n}}
}

// A client plays scripts, which say what the server does. The client itself checks each frame, too.
func TestScripts(t *testing.T) {
	stranger, bare := scene{stranger: true}, scene{bare: true}
	longHeader := func(stranger bool) scene {
		return scene{stranger: stranger, limits: func(l *exchange.Limits) { l.HeaderBytes = 1 << 10 }}
	}
	for name, test := range map[string]struct {
		scene
		lines string
	}{
		// An error of a stream ends only this stream, although more of its frames are on their way.
		"malformed request": {lines: `
			GET@1,Upper=x win@1:1 data@1:1 rst@1 GET@3. => 1:!PROTOCOL_ERROR!STREAM_CLOSED 3:200+5.`},
		"request without its body": {lines: `
			POST@1.,content-length=5 GET@3. => 1:!PROTOCOL_ERROR 3:200+5.`},
		"no request": {lines: `
			GET@1.,:path=nothing => 1:!PROTOCOL_ERROR
			GET@3.,:method= => 3:!PROTOCOL_ERROR
			GET@5.,:scheme= => 5:!PROTOCOL_ERROR
			CONNECT@7. => 7:!PROTOCOL_ERROR
			GET@9.,te=gzip => 9:!PROTOCOL_ERROR
			GET@11.,connection=close => 11:!PROTOCOL_ERROR
			OPTIONS@13.,:path=*,te=trailers => 13:200+5.`},
		"HEADERS behind the end": {lines: `
			POST@1. POST@1. GET@3. => 1:!STREAM_CLOSED 3:200+5.`},
		"trailers behind a reset": {lines: `
			POST@1 5*data@1:16384 => 1:!FLOW_CONTROL_ERROR
			end@1 GET@3. => 1:!STREAM_CLOSED 3:200+5.`},
		"window of a stream": {lines: `
			POST@1. win@1:2147483647 GET@3. => 1:!FLOW_CONTROL_ERROR 3:200+5.`},
		"trailers": {lines: `
			PUT@1 data@1:5 end@1 => 1:200+5.`},
		"panic": {lines: `
			PANIC@1. TUNNEL@3. => *
			GET@5. => 5:200+5.`},

		// An error of the connection ends it. GOAWAY names the last stream with a handler.
		"large frame": {lines: `
			STUCK@1 data@1:16385 => goaway:1:FRAME_SIZE_ERROR`},
		"window of the connection": {lines: `
			STUCK@1. win:2147483647 => goaway:1:FLOW_CONTROL_ERROR`},
		"window by SETTINGS": {lines: `
			STUCK@1. win@1:2147418112 =>
			set:window=65536 => ack goaway:1:FLOW_CONTROL_ERROR`},
		"too many settings": {lines: `
			raw:4:0:0:600 => ack
			raw:4:0:0:606 => goaway:0:ENHANCE_YOUR_CALM eof`},
		"even stream": {lines: `GET@2. => goaway:0:PROTOCOL_ERROR eof`},
		"older stream": {lines: `
			GET@5. => 5:200+5.
			GET@3. => goaway:5:STREAM_CLOSED eof`},
		"stream again":  {lines: `STUCK@1 STUCK@1 => goaway:1:PROTOCOL_ERROR`},
		"future stream": {lines: `STUCK@1. rst@9 => goaway:1:PROTOCOL_ERROR`},
		"PUSH_PROMISE":  {lines: `STUCK@1. raw:5:4:1:8 => goaway:1:PROTOCOL_ERROR`},
		"no SETTINGS":   {bare, `mute preface ping => settings goaway:0:PROTOCOL_ERROR eof`},
		"more than there is room for": {lines: `
			64*STUCK;4*data:16384 =>
			data:1 => goaway:127:FLOW_CONTROL_ERROR`},

		// Windows of what the server sends. A blocked response goes on when half of the window is there again, or
		// 64 KiB of it, or when its rest fits. It uses a smaller window after a moment.
		"negative window": {window(100), `
			GET/1000@1. => 1:200+100
			set:window=10 win@1:90 wait:60ms => ack
			win@1:1 wait:60ms => 1:+1
			set:window=909 => ack 1:+899.`},
		"window of Go's transport": {window(4 << 20), `
			win:2000000000 GET/6000000@1. => 1:200+4194304
			win@1:16384 wait:5ms 2*win@1:16384 wait:5ms =>
			win@1:16384 =>
			wait:4ms => 1:+65536
			win@1:10 wait:5ms =>
			wait:50ms => 1:+10`},
		"half of a small window": {window(65535), `
			win:2000000000 GET/1000000@1. => 1:200+65535
			win@1:32766 =>
			win@1:1 => 1:+32767`},
		"the rest": {window(4 << 20), `
			win:2000000000 GET/4195304@1. => 1:200+4194304
			win@1:1000 wait:5ms => 1:+1000.`},
		// Reads are gathered for a client whose connection has a large window, until the response ends.
		"gathering": {window(1114095), `
			win:8000000 GET/1179631@1. => 1:200+1114095
			win@1:10 =>
			win@1:1179631 =>
			wait:4ms => 1:+65536.
			wait:4ms GET/1000@3. => 3:200+1000.`},
		"no gathering": {window(1114095), `
			GET/1179631@1. => 1:200+65535
			16*win:65535;wait:1ms => 1:+1048560
			win@1:10 =>
			win@1:1179631 win:65536 => 1:+65536.`},

		// Uploads.
		"padding is given back": {lines: `
			PUT@1 600*data@1:1+255 data@1:1. => 1:200+5.`},
		"overrun windows are given back": {lines: `
			4*POST;5*data:16128+255 => 1:!FLOW_CONTROL_ERROR 3:!FLOW_CONTROL_ERROR 5:!FLOW_CONTROL_ERROR 7:!FLOW_CONTROL_ERROR`},
		"100 Continue": {lines: `
			PUT@1,expect=100-continue => 1:100
			data@1:5. => 1:200+5.`},
		"the server reads slowly": {within(50 * time.Millisecond), `
			NAP@1 data@1:5. wait:1s => 1:200+5.`},
		"the client sends slowly": {within(time.Second), `
			PUT@1 data@1:5 wait:999ms =>
			data@1:5 wait:999ms =>
			wait:1ms => 1:400+5.!NO_ERROR`},
		"longer than declared": {lines: `
			PUT@1,content-length=4 data@1:9000 => 1:!PROTOCOL_ERROR`},
		"canceled": {lines: `
			POST@1 3*data@1:16384 rst@1 ping => pong`},

		// If a response ends before its request, RST_STREAM follows. The bytes that are on their way are given back,
		// also those of a stranger whose connection goes on.
		"early response": {lines: `
			EARLY@1 => 1:413+5.!NO_ERROR
			200*data@1:1000 => *
			GET@3. => 3:200+5.`},
		"early response, partly read": {lines: `
			PART@1 data@1:10000 => 1:413+5.!NO_ERROR`},
		"early response to what ends": {lines: `
			EARLY@1 => 1:413+5.!NO_ERROR
			data@1:10000. => 1:!STREAM_CLOSED
			EARLY@3 => 3:413+5.!NO_ERROR
			rst@3 =>
			EARLY@5 => 5:413+5.!NO_ERROR
			end@5 => 5:!STREAM_CLOSED
			GET@7. => 7:200+5.`},
		"early response that ends the connection": {lines: `
			mute LAST@1 => goaway:max:NO_ERROR ping 1:413+5.!NO_ERROR
			pong => goaway:1:NO_ERROR eof`},
		"early response to a stranger": {stranger, `
			EARLY@1 => goaway:1:NO_ERROR 1:413+5.!NO_ERROR eof`},
		"early response to a stranger who may try again": {stranger, `
			BUSY@1 => 1:503+5.!NO_ERROR
			200*data@1:1000 => *
			ping => pong`},
		"bodies of refusals that wait": {scene{stranger: true, settings: windows(0)}, `
			64*BUSY;4*data:16384 => *
			BUSY data:16384 => 129:503
			set:window=5 wait:50ms => *`},

		// Drains. The second GOAWAY names the last stream when the client has read the first.
		"drain": {lines: `
			SLOW@1. drain => goaway:max:NO_ERROR ping goaway:1:NO_ERROR
			wait:10s => 1:200+5. eof`},
		"drain before the greeting": {scene{draining: true, bare: true}, `mute => settings goaway:max:NO_ERROR ping`},
		"drain of a silent client": {lines: `
			mute POST@1. drain => goaway:max:NO_ERROR ping
			POST@3. wait:4999ms =>
			wait:1ms => goaway:3:NO_ERROR`},
		"drain without streams": {lines: `
			drain => goaway:max:NO_ERROR ping goaway:0:NO_ERROR eof`},
		"GOAWAY names no later stream": {lines: `
			STUCK@1. drain => goaway:max:NO_ERROR ping goaway:1:NO_ERROR
			POST@3. raw:0:0:255:0 => goaway:1:PROTOCOL_ERROR`},
		"cut": {lines: `
			POST@1. cut => 1:200+5.`},

		// A refusal ends a stranger's connection with the streams that were taken before. On a user's connection,
		// streams on their way are taken: the token may have expired, or a balancer may share the connection.
		"refused stranger": {stranger, `
			POST@1. DENY@3. => goaway:3:NO_ERROR 3:401+5.
			99*DENY. =>
			rst@1 => eof`},
		"refused user": {lines: `
			mute DENY@1. => goaway:max:NO_ERROR ping 1:401+5.
			GET@3. => 3:200+5.
			pong => goaway:3:NO_ERROR eof`},
		"long header": {longHeader(false), `
			GET@1.,a=x512,b=x512 => 1:431+130.
			GET@3. => 3:200+5.`},
		"long header of a stranger": {longHeader(true), `
			GET@1.,a=x512,b=x512 => goaway:1:NO_ERROR 1:431+130. eof`},
		"busy": {stranger, `
			99*BUSY.;ping => *
			ping => pong
			BUSY. => goaway:199:NO_ERROR 199:503+5. eof`},
		// A stranger's header blocks cost time even if they are broken, or come after the last stream.
		"broken headers of a stranger": {stranger, `
			STUCK@1. 100*GET.,Upper=x => *
			GET.,Upper=x => 203:!PROTOCOL_ERROR goaway:1:ENHANCE_YOUR_CALM`},
		"ignored headers of a stranger": {stranger, `
			STUCK@1. DENY@3. => goaway:3:NO_ERROR 3:401+5.
			100*GET. =>
			GET. => goaway:3:ENHANCE_YOUR_CALM`},
		"streams that a stranger cancels": {stranger, `
			STUCK@1. 100*STUCK.;rst =>
			STUCK. rst => goaway:203:ENHANCE_YOUR_CALM`},
		"windows that a stranger changes": {stranger, `
			STUCK@1. 50*set:window=5;set:window=6 => *
			set:window=7 => ack goaway:1:ENHANCE_YOUR_CALM`},
		"windows that a user changes": {lines: `
			GET@1. => 1:200+5.
			300*set:window=5;set:window=6 => *
			GET@3. => 3:200+5.`},
		"streams that a user cancels": {lines: `
			POST@1. 300*POST.;rst ping => *
			GET. => 603:200+5.`},

		// Responses to control frames are bounded if the client does not read.
		"PINGs": {scene{unread: 1}, `
			read:0 3000*ping wait:1s read:-1 => *
			ping => pong`},
		"PING flood": {scene{unread: 1}, `
			read:0 4200*ping wait:1s read:-1 => * goaway:0:ENHANCE_YOUR_CALM eof`},
		"PING flood of a stranger": {scene{unread: 1, stranger: true}, `
			read:0 1200*ping wait:1s read:-1 => * goaway:0:ENHANCE_YOUR_CALM eof`},
		"SETTINGS flood": {scene{unread: 1}, `
			read:0 9000*raw:4:0:0:0 wait:1s read:-1 => * goaway:0:ENHANCE_YOUR_CALM eof`},
		"RST_STREAM flood": {scene{unread: 1}, `
			read:0 5200*GET.,Upper=x wait:1s read:-1 => *
			over`},
		// Time.
		"no preface": {bare, `wait:9999ms => settings
			wait:1ms => eof`},
		"preface alone": {bare, `mute preface wait:1999ms => settings
			wait:1ms => eof`},
		"silent client": {lines: `
			mute POST@1. wait:29999ms =>
			wait:1ms => ping
			wait:14999ms =>
			wait:1ms => eof`},
		"idle client": {lines: `
			GET@1. => 1:200+5.
			wait:59999ms => ping
			wait:1ms => ping goaway:max:NO_ERROR ping goaway:1:NO_ERROR eof`},
		"waiting client": {lines: `
			POST@1. wait:1h => *
			GET@3. => 3:200+5.`},
		"quiet client": {within(100 * time.Millisecond), `
			GET@1. wait:300ms ping => 1:200+5. pong`},

		// Watches. Their clients learn at once that they have begun.
		"quiet stream": {lines: `
			QUIET@1. => 1:200
			WATCH@3. => 3:200`},
		"event": {lines: `
			WATCH@1. => 1:200
			event:10 => 1:+170`},
		"stalled watch": {within(time.Second), `
			WATCH@1. => 1:200
			event:1000000 => 1:+65535
			wait:999ms =>
			wait:1ms => 1:!CANCEL`},
		"stalled watch of small events": {scene{settings: window(1).settings, limits: within(time.Second).limits}, `
			WATCH@1. => 1:200
			event:10 => 1:+1
			wait:999ms =>
			wait:1ms => 1:!CANCEL`},
		"full buffer": {window(1<<31 - 1), `
			win:2000000000 WATCH@1. => 1:200
			read:0 100*GET/32768. =>
			event:1000 wait:2m over`},
	} {
		t.Run(name, func(t *testing.T) {
			start := "=> settings ack\n"
			if test.bare || test.draining {
				start = ""
			}
			test.play(t, start+strings.TrimSpace(test.lines))
		})
	}
}
