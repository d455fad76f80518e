package conn

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cachetest"
	"github.com/watchproxy/watchproxy/bench/conntest"
)

// tlsRecord returns a record as TLS writes it.
func tlsRecord(size int) []byte {
	r := make([]byte, recordHeader+size)
	r[0] = 23
	binary.BigEndian.PutUint16(r[3:], uint16(size))
	return r
}

// A connection ends if records without data are longer in a row than idleMost, however the bytes
// arrive, and not before. This test reads the socket as crypto/tls does: only if no whole record is left.
func TestRecordsWithoutData(t *testing.T) {
	r := rand.New(rand.NewPCG(cachetest.Seed(t), 0))
	for range 200 {
		client, accepted := conntest.Pipe(1 << 20)
		c := New(accepted)
		c.socket.reading.records = &records{}
		var sizes []int
		var data []bool // which records bring data
		row, most := 0, 0
		for range 40 {
			size, fed := r.IntN(3000), r.IntN(8) == 0
			if fed {
				size, row = r.IntN(16<<10), 0
			} else if row += size; row > most {
				most = row
			}
			sizes, data = append(sizes, size), append(data, fed)
			if _, err := client.Write(tlsRecord(size)); err != nil {
				t.Fatal(err)
			}
		}
		_ = client.Close()
		err := readAsTLS(r, c.socket, data)
		switch {
		case most <= idleMost && !errors.Is(err, io.EOF):
			t.Errorf("%v bytes without data: %v", most, err)
		case most > idleMost+5*readAhead && !errors.Is(err, errNoData):
			t.Errorf("%v bytes without data, but the connection goes on: %v (%v, %v)", most, err, sizes, data)
		}
	}
}

// readAhead limits a read. Records that become whole in one read with data do not count. Before and after
// a row of records without data, these have less than twice readAhead each, and a record that was begun.
const readAhead = 2 << 10

func readAsTLS(r *rand.Rand, s *socket, data []bool) error {
	var ahead bytes.Buffer
	piece := make([]byte, readAhead)
	for {
		for ahead.Len() < recordHeader || ahead.Len() < recordHeader+int(binary.BigEndian.Uint16(ahead.Bytes()[3:])) {
			n, err := s.Read(piece[:1+r.IntN(readAhead)])
			if err != nil {
				return err
			}
			ahead.Write(piece[:n])
		}
		ahead.Next(recordHeader + int(binary.BigEndian.Uint16(ahead.Bytes()[3:])))
		s.reading.records.data = s.reading.records.data || data[0]
		data = data[1:]
	}
}
