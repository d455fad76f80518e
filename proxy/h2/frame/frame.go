// Package frame writes HTTP/2 frames and header blocks, and reads requests from them. It does not
// use connections. It appends frames to the caller's buffer, because x/net's Framer would make a
// system call for each frame.
package frame

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

const (
	// HeadSize is the length of a frame's head, in bytes.
	HeadSize = 9
	// ResetSize is the length of RST_STREAM and WINDOW_UPDATE, in bytes.
	ResetSize = HeadSize + 4
)

// AppendHead appends the head of a frame.
func AppendHead(b []byte, length int, kind http2.FrameType, flags http2.Flags, id uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	return binary.BigEndian.AppendUint32(b, id)
}

// AppendSettings appends SETTINGS.
func AppendSettings(b []byte, settings ...http2.Setting) []byte {
	b = AppendHead(b, 6*len(settings), http2.FrameSettings, 0, 0)
	for _, s := range settings {
		b = binary.BigEndian.AppendUint16(b, uint16(s.ID))
		b = binary.BigEndian.AppendUint32(b, s.Val)
	}
	return b
}

// AppendSettingsAck appends the acknowledgement of SETTINGS.
func AppendSettingsAck(b []byte) []byte {
	return AppendHead(b, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)
}

// AppendPing appends PING with flags: none, or FlagPingAck.
func AppendPing(b []byte, flags http2.Flags, data [8]byte) []byte {
	return append(AppendHead(b, len(data), http2.FramePing, flags, 0), data[:]...)
}

// AppendWindowUpdate appends WINDOW_UPDATE.
func AppendWindowUpdate(b []byte, id uint32, n int64) []byte {
	b = AppendHead(b, 4, http2.FrameWindowUpdate, 0, id)
	return binary.BigEndian.AppendUint32(b, uint32(n)) //nolint:gosec // a window fits
}

// AppendGoaway appends GOAWAY.
func AppendGoaway(b []byte, last uint32, code http2.ErrCode) []byte {
	b = AppendHead(b, 8, http2.FrameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}

// AppendReset appends RST_STREAM.
func AppendReset(b []byte, id uint32, code http2.ErrCode) []byte {
	b = AppendHead(b, 4, http2.FrameRSTStream, 0, id)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}

// AppendData appends DATA.
func AppendData(b []byte, id uint32, p []byte) []byte {
	return append(AppendHead(b, len(p), http2.FrameData, 0, id), p...)
}

// AppendEnd appends DATA that ends a stream.
func AppendEnd(b []byte, id uint32) []byte {
	return AppendHead(b, 0, http2.FrameData, http2.FlagDataEndStream, id)
}
