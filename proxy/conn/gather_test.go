package conn

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchproxy/watchproxy/proxy/conn/conntest"
)

// While reads are gathered, each byte is read at most GatherTime after it was sent. Otherwise it is
// read at once. No byte is lost, whatever the reader's buffers.
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
				p := make([]byte, size)
				for i := 0; ; {
					n, err := server.Read(p)
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

// A read of the kernel takes all small pieces that have arrived, and buffers are given back.
func TestGatheredReadIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, accepted := conntest.Pipe(1 << 20)
		server := New(accepted)
		defer server.Close()
		server.Gather(time.Second)
		for range 3 {
			go func() {
				for i := range byte(100) {
					if _, err := client.Write([]byte{i}); err != nil {
						t.Error(err)
					}
					time.Sleep(GatherTime / 200)
				}
			}()
			began := time.Now()
			p := make([]byte, 1)
			for i := range byte(100) {
				if _, err := server.Read(p); err != nil || p[0] != i {
					t.Fatalf("%d, %v instead of %d", p[0], err, i)
				}
			}
			if took := time.Since(began); took != GatherTime {
				t.Errorf("100 reads take %v", took)
			}
			if g := &server.socket.gather; g.buf != nil || g.kept != nil {
				t.Error("the buffer is kept without bytes")
			}
		}
	})
}

// A wait below TLS goes on at once if bytes were gathered, and then for each byte.
func TestGatheredBytesEndTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, accepted := conntest.Pipe(1 << 20)
		server := New(accepted)
		defer server.Close()
		server.Gather(time.Minute)
		p := make([]byte, 1)
		read := func(text string, how func() (int, error)) {
			t.Helper()
			if n, err := how(); err != nil || string(p[:n]) != text {
				t.Errorf("%q, %v instead of %q", p[:n], err, text)
			}
		}
		plainly := func() (int, error) { return server.Read(p) }
		below := func() (int, error) { return server.WaitBelowTLS(plainly) }
		send := func(text string) {
			if _, err := client.Write([]byte(text)); err != nil {
				t.Error(err)
			}
		}
		send("ab")
		read("a", plainly)
		read("b", below)
		time.AfterFunc(time.Second, func() { send("c") })
		read("c", below)
		send("de")
		read("d", plainly)
		if err := server.socket.await(); err != nil {
			t.Error(err)
		}
		read("e", plainly)
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
