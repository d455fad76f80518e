package faults

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

var (
	crowding    = flag.Int("crowd", 60, "how many watchers TestStalled has beside the one that stalls")
	stallRounds = flag.Int("rounds", 1, "how often TestStalled measures with and without it")
	stallTime   = flag.Duration("round", 12*time.Second, "how long it measures")
)

const (
	stallRate  = 10 // events/s for the crowd
	noiseRate  = 50 // events/s that only the stalling watcher gets
	noiseSize  = 32 << 10
	stalledLog = "cache: {log: {maxAge: 5s, maxBytes: 8Mi}}\n"
	timeKey    = `"at":"`
	// stalledLogMost limits the bytes of the log: its configured bound, and the segment that is
	// being filled.
	stalledLogMost = 9 << 20
)

// stall is a crowd of watchers of one namespace, and one watcher of all namespaces, which gets much
// more data.
type stall struct {
	*world
	crowd  []*onlooker
	events atomic.Int64 // written for the crowd
}

// onlooker is a watcher of the crowd. It measures the delay of events.
type onlooker struct {
	came   atomic.Int64
	mu     sync.Mutex
	delays []time.Duration
}

// phase has the results of the time in which the one watcher read, or stalled.
type phase struct {
	p50, p99         time.Duration
	delivered        int
	resident, growth int64 // bytes of the proxy
	held             int64 // maximum of the bytes in the kernel for the one watcher
	logged           int64 // bytes of the log
	cut              bool
}

// A watcher that does not read costs the other watchers only its share of the log. The others get
// every event, and the kernel's buffers hold all data for the stalled watcher. The test measures
// the delays of the others, with and without the stalled watcher in turn, and does not judge them.
func TestStalled(t *testing.T) {
	var table strings.Builder
	fmt.Fprintf(&table, "%s. %d watchers get %d events/s. An extra watcher also gets %d events/s of %d KiB. It reads or stalls in turn, for %v each.\n\n"+
		"| round | HTTP | the extra watcher | p50 | p99 | deliveries | proxy memory (MiB) | its growth (MiB) | event log (KiB) | unread in the kernel (KiB) | disconnected |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
		time.Now().UTC().Format(time.DateOnly), *crowding, stallRate, noiseRate, noiseSize>>10, *stallTime)
	s := newStall(t)
	var reading, stalled []time.Duration
	for round := range *stallRounds {
		protocol := cluster.DrawProtocol("stalled", strconv.Itoa(round))
		for _, stalls := range []bool{false, true} {
			p := s.phase(t, protocol, stalls)
			what := "reads"
			if stalls {
				what = "stalls"
				stalled = append(stalled, p.p99)
			} else {
				reading = append(reading, p.p99)
			}
			fmt.Fprintf(&table, "| %d | %d | %s | %v | %v | %d | %d | %d | %d | %d | %t |\n", round+1, protocol, what, p.p50.Round(10*time.Microsecond),
				p.p99.Round(10*time.Microsecond), p.delivered, p.resident>>20, p.growth>>20, p.logged>>10, p.held>>10, p.cut)
			if most := kernelMost(t); p.held > most || stalls && p.held == 0 {
				t.Errorf("%d bytes lay in the kernel for who did not read them, of at most %d", p.held, most)
			}
			if p.logged > stalledLogMost {
				t.Errorf("%d bytes are in the log", p.logged)
			}
			if stalls && !p.cut {
				t.Error("it was not cut, though the log has left it behind")
			}
		}
	}
	ratios := make([]float64, *stallRounds) // of each round, because other work on the machine changes from round to round
	for i := range ratios {
		ratios[i] = float64(stalled[i]) / float64(reading[i])
	}
	slices.Sort(ratios)
	slices.Sort(reading)
	slices.Sort(stalled)
	middle := *stallRounds / 2
	fmt.Fprintf(&table, "\np99 of the other watchers, median of all rounds: %v with a stalled watcher, %v without. Ratio in a round: median %.2f, "+
		"range %.2f to %.2f.\n", stalled[middle].Round(10*time.Microsecond), reading[middle].Round(10*time.Microsecond),
		ratios[middle], ratios[0], ratios[len(ratios)-1])
	t.Log("\n" + table.String())
	report(t, table.String())
}

func newStall(t *testing.T) *stall {
	t.Helper()
	s := &stall{world: newWorld(t, cluster.APIServerT(t, cluster.Options{}), configMaps, stalledLog, "")}
	for _, name := range []string{"noise", "crowd"} {
		s.api.NamespaceT(t, name)
	}
	if err := s.awaken(t.Context(), s.straight(t), "crowd"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		watching.Wait()
	})
	for range *crowding {
		o := &onlooker{}
		s.crowd = append(s.crowd, o)
		// Not through the relay, because only the proxy's buffers may hold the unread data.
		resp, err := s.straight(t).Watch(ctx, cluster.Get(s.of.watch("crowd", "", "resourceVersion=0")))
		if err != nil {
			t.Fatal(err)
		}
		watching.Go(func() {
			defer resp.Body.Close()
			o.look(resp.Body)
		})
	}
	return s
}

func (o *onlooker) look(body io.Reader) {
	const buffer = 8 << 10
	for r := bufio.NewReaderSize(body, buffer); ; {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		_, at, found := bytes.Cut(line, []byte(timeKey))
		if !found {
			continue
		}
		at, _, _ = bytes.Cut(at, []byte(`"`))
		wrote, err := strconv.ParseInt(string(at), 10, 64)
		if err != nil {
			continue
		}
		late := time.Since(time.Unix(0, wrote))
		o.came.Add(1)
		o.mu.Lock()
		o.delays = append(o.delays, late)
		o.mu.Unlock()
	}
}

// take returns the delays since the last call.
func (o *onlooker) take() []time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	delays := o.delays
	o.delays = nil
	return delays
}

// phase writes for a while, and measures deliveries.
func (s *stall) phase(t *testing.T, protocol cluster.Protocol, stalls bool) (p phase) {
	t.Helper()
	config := cluster.Trust(s.proxy.CA)
	if protocol == cluster.HTTP2 {
		config.NextProtos = []string{"h2"}
	}
	const smallest = 4 << 10 // of a socket's buffer
	dialer := tls.Dialer{Config: config, NetDialer: &net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if !stalls {
			return nil
		}
		return errors.Join(c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, smallest)
		}), err)
	}}}
	conn, err := dialer.DialContext(t.Context(), "tcp", s.proxy.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	rest, err := openBare(conn, protocol, s.of.root+"/"+s.of.Resource+"?watch=true&resourceVersion=0")
	if err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	if !stalls {
		reading.Go(func() { _ = rest() })
	}
	before, _ := s.proxy.MemoryT(t)
	for _, o := range s.crowd {
		o.take()
	}
	sampling, stop := context.WithCancel(t.Context())
	defer stop()
	reading.Go(func() {
		for ; sampling.Err() == nil; pause(sampling) {
			p.held = max(p.held, unsent(s.proxy.Address(), conn.LocalAddr()))
		}
	})
	s.write(t)
	var delays []time.Duration
	for _, o := range s.crowd {
		cluster.Within(t, scenarioLimit, "a watcher has seen all events", func() bool { return o.came.Load() >= s.events.Load() })
		delays = append(delays, o.take()...)
	}
	p.resident, _ = s.proxy.MemoryT(t)
	p.growth = p.resident - before
	slices.Sort(delays)
	p.delivered, p.p50, p.p99 = len(delays), delays[len(delays)/2], delays[len(delays)*99/100]
	p.logged = int64(s.proxy.MetricsT(t).Sum("watchproxy_feed_log_bytes"))
	if stalls {
		_ = conn.SetReadDeadline(time.Now().Add(stallPatience))
		p.cut = !errors.Is(rest(), os.ErrDeadlineExceeded)
	}
	stop()
	conn.Close()
	reading.Wait()
	return p
}

// stallPatience is the time for which the stalled watcher, when it reads again, waits for the end
// of its unread data.
const stallPatience = 2 * time.Second

// write makes events for the crowd and noise for the other watcher, for the time of a round and
// until the proxy has given up a blocked write.
func (s *stall) write(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), *stallTime)
	defer cancel()
	var writing sync.WaitGroup
	every := func(rate int, do func(i int) error) {
		writing.Go(func() {
			tick := time.NewTicker(time.Second / time.Duration(rate))
			defer tick.Stop()
			for i := 0; ctx.Err() == nil; i++ {
				if err := do(i); err != nil {
					t.Error(err)
					return
				}
				<-tick.C
			}
		})
	}
	admin := s.api.Client()
	put := func(namespace, name string, data map[string]string) error {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
		configs := admin.CoreV1().ConfigMaps(namespace)
		_, err := configs.Update(t.Context(), object, metav1.UpdateOptions{})
		if err != nil {
			_, err = configs.Create(t.Context(), object, metav1.CreateOptions{})
		}
		return err
	}
	every(stallRate, func(i int) error {
		err := put("crowd", fmt.Sprintf("event-%d", i%10), map[string]string{"at": strconv.FormatInt(time.Now().UnixNano(), 10)})
		if err == nil {
			s.events.Add(1)
		}
		return err
	})
	ballast := strings.Repeat("n", noiseSize)
	every(noiseRate, func(i int) error {
		return put("noise", fmt.Sprintf("noise-%d", i%10), map[string]string{"n": strconv.Itoa(i), "ballast": ballast})
	})
	writing.Wait()
}

// kernelMost returns the most unread bytes that the kernel holds for a connection.
func kernelMost(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_wmem") // tcp(7): the least, the usual, the most
	if err != nil {
		t.Fatal(err)
	}
	sizes := strings.Fields(string(b))
	most, err := strconv.ParseInt(sizes[len(sizes)-1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return most
}

// unsent returns how many bytes from a server to a client the kernel holds, or 0 without such a
// connection.
func unsent(server string, client net.Addr) int64 {
	port := func(address string) string {
		_, port, _ := net.SplitHostPort(address)
		n, _ := strconv.Atoi(port)
		return fmt.Sprintf(":%04X", n)
	}
	table, err := os.ReadFile("/proc/net/tcp") // proc_pid_net(5)
	if err != nil {
		return 0
	}
	from, to := port(server), port(client.String())
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasSuffix(fields[1], from) && strings.HasSuffix(fields[2], to) {
			queue, _, _ := strings.Cut(fields[4], ":")
			n, _ := strconv.ParseInt(queue, 16, 64)
			return n
		}
	}
	return 0
}

// unsent sees the bytes that a server has written and its client has not read.
func TestUnsent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	_ = server.SetWriteDeadline(time.Now().Add(time.Second / 2))
	const more = 32 << 20 // than it takes
	if _, err := server.Write(make([]byte, more)); err == nil {
		t.Fatal("the kernel took everything")
	}
	if n := unsent(l.Addr().String(), client.LocalAddr()); n == 0 || n > kernelMost(t) {
		t.Errorf("%d bytes", n)
	}
}
