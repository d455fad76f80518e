package conn

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/bench/conntest"
)

// While reads are gathered, each byte is read at most GatherTime after it was sent. Otherwise, and below
// TLS, it is read at once. No byte is lost, whatever the reader's buffers, and no buffer is kept without
// bytes.
func TestGatheredReads(t *testing.T) {
	const rounds, steps = 200, 60
	for round := range rounds {
		random := rand.New(rand.NewPCG(1, uint64(round)))
		synctest.Test(t, func(t *testing.T) {
			client, accepted := conntest.Pipe(1 << 20)
			server := New(accepted)
			defer server.Close()
			type piece struct {
				end  int // the number of bytes up to its end
				at   time.Time
				late time.Duration // how long its bytes may wait
			}
			var sending sync.Mutex
			var sent []piece
			var want, got bytes.Buffer
			var until time.Time
			size := 1 + random.IntN(64)<<random.IntN(10)
			read := make(chan struct{})
			go func() {
				defer close(read)
				p, how := make([]byte, size), rand.New(rand.NewPCG(2, uint64(round)))
				read := func() (int, error) { return server.Read(p) }
				for i := 0; ; {
					var n int
					var err error
					switch how.IntN(4) {
					case 0:
						n, err = server.WaitBelowTLS(read)
					case 1:
						if err = server.socket.await(); err == nil {
							n, err = read()
						}
					default:
						n, err = read()
					}
					if g := &server.socket.gather; len(g.kept) == 0 && (g.buf != nil || g.kept != nil) {
						t.Error("the buffer is kept without bytes")
					}
					if errors.Is(err, io.EOF) {
						return
					} else if err != nil {
						t.Error(err)
						return
					}
					sending.Lock()
					for sent[i].end <= got.Len() {
						i++
					}
					if late := time.Since(sent[i].at); late > sent[i].late {
						t.Errorf("round %d: a byte is read %v after it was sent, %v are allowed", round, late, sent[i].late)
					}
					sending.Unlock()
					got.Write(p[:n])
				}
			}()
			for range steps {
				switch random.IntN(4) {
				case 0:
					d := time.Duration(random.IntN(30)) * time.Millisecond
					server.Gather(d)
					until = time.Now().Add(d)
				case 1:
					time.Sleep(time.Duration(random.IntN(20_000)) * time.Microsecond)
				default:
					p := make([]byte, 1+random.IntN(1<<random.IntN(16)))
					for i := range p {
						p[i] = byte(random.Uint32())
					}
					late := time.Duration(0)
					if !time.Now().After(until.Add(GatherTime)) { // the read may have begun before the end
						late = GatherTime
					}
					want.Write(p)
					sending.Lock()
					sent = append(sent, piece{want.Len(), time.Now(), late})
					sending.Unlock()
					if _, err := client.Write(p); err != nil {
						t.Error(err)
					}
					synctest.Wait()
				}
			}
			client.Close()
			<-read
			if !bytes.Equal(got.Bytes(), want.Bytes()) {
				t.Errorf("round %d: %d bytes are read, %d were sent, or others", round, got.Len(), want.Len())
			}
		})
	}
}

// A read of the kernel takes all small pieces that have arrived.
func TestGatheredReadIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, accepted := conntest.Pipe(1 << 20)
		server := New(accepted)
		defer server.Close()
		server.Gather(time.Second)
		go func() {
			for range 100 {
				_, _ = client.Write([]byte{1})
				time.Sleep(GatherTime / 200)
			}
		}()
		began := time.Now()
		if _, err := io.ReadFull(iotest.OneByteReader(server), make([]byte, 100)); err != nil || time.Since(began) != GatherTime {
			t.Errorf("100 reads take %v, %v", time.Since(began), err)
		}
	})
}

// After a read that brought much, the next one waits shorter.
func TestQuickClientsWaitShorter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, accepted := conntest.Pipe(1 << 20)
		server := New(accepted)
		defer server.Close()
		server.Gather(time.Minute)
		for i, step := range []struct {
			size int
			took time.Duration
		}{
			{gatherWorth, GatherTime},
			{2 * gatherWorth, GatherTime},
			{gatherWorth, GatherTime / 2},
			{4 * gatherWorth, GatherTime / 2},
			{10, gatherLeast},
			{10, GatherTime},
		} {
			if _, err := client.Write(make([]byte, step.size)); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if _, err := io.ReadFull(server, make([]byte, step.size)); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took != step.took {
				t.Errorf("read %d takes %v, want %v", i, took, step.took)
			}
		}
	})
}
