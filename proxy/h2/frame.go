package h2

// This file appends frames to the caller's buffer: x/net's Framer makes a system call for each.

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

const (
	// headSize is the length of a frame's head, in bytes.
	headSize = 9
	// resetSize is the length of RST_STREAM and WINDOW_UPDATE, in bytes.
	resetSize = headSize + 4
)

func appendHead(b []byte, length int, kind http2.FrameType, flags http2.Flags, id uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	return binary.BigEndian.AppendUint32(b, id)
}

func appendSettings(b []byte, settings ...http2.Setting) []byte {
	b = appendHead(b, 6*len(settings), http2.FrameSettings, 0, 0)
	for _, s := range settings {
		b = binary.BigEndian.AppendUint16(b, uint16(s.ID))
		b = binary.BigEndian.AppendUint32(b, s.Val)
	}
	return b
}

func appendPing(b []byte, flags http2.Flags, data [8]byte) []byte {
	return append(appendHead(b, len(data), http2.FramePing, flags, 0), data[:]...)
}

func appendWindowUpdate(b []byte, id uint32, n int64) []byte {
	b = appendHead(b, 4, http2.FrameWindowUpdate, 0, id)
	return binary.BigEndian.AppendUint32(b, uint32(n)) //nolint:gosec // a window fits
}

func appendGoaway(b []byte, last uint32, code http2.ErrCode) []byte {
	b = appendHead(b, 8, http2.FrameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}

func appendReset(b []byte, id uint32, code http2.ErrCode) []byte {
	b = appendHead(b, 4, http2.FrameRSTStream, 0, id)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}

func appendData(b []byte, id uint32, p []byte) []byte {
	return append(appendHead(b, len(p), http2.FrameData, 0, id), p...)
}

func appendEnd(b []byte, id uint32) []byte {
	return appendHead(b, 0, http2.FrameData, http2.FlagDataEndStream, id)
}
