package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http/httputil"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m) }

// Ratios compare the processor time per unit. The comparison with a target has the right direction.
func TestReport(t *testing.T) {
	rows := []row{
		{
			Scenario: "cheap", Clients: 4, Unit: "request", Target: target{OfFloor: 1.3, LessThanAPIServer: 18},
			Servers: map[string]spent{kubeAPIServer: {Units: 2, Seconds: 2}, ours: {Units: 100, Seconds: 5}, theFloor: {Units: 10, Seconds: 0.4}},
		},
		{
			Scenario: "dear", Clients: 1, Unit: "request", Target: target{OfFloor: 1.2, LessThanAPIServer: 21},
			Servers: map[string]spent{kubeAPIServer: {Units: 2, Seconds: 2}, ours: {Units: 100, Seconds: 5}, theFloor: {Units: 10, Seconds: 0.4}},
		},
		{Scenario: "small", Unit: "KiB", Target: target{AtMost: 16}, Value: map[string]float64{ours: 16}},
		{Scenario: "large", Unit: "KiB", Target: target{AtMost: 16}, Value: map[string]float64{ours: 16.1}},
		{Scenario: "late", Unit: "ms", Target: target{LessThanAPIServer: 2}, Value: map[string]float64{kubeAPIServer: 10, ours: 5.1}},
	}
	var out strings.Builder
	(&report{Pods: 7, Rows: rows}).print(&out)
	for _, want := range []string{
		"20.00 × (18, met)", "1.25 × (1.3, met)", "20.00 × (21, MISSED)", "1.25 × (1.2, MISSED)",
		"16.00            ≤ 16, met", "16.10         ≤ 16, MISSED", "≤ 5, MISSED", "7 pods",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
}

// The output of every run, also of single groups, names the groups, date, commit and machine. The
// report of some groups does not replace the report of all.
func TestHeader(t *testing.T) {
	for only, name := range map[string]string{"": "load", "^tables$": "tables", "fan-out": "fan-out", "lists|http2": "some", "^.*$": "some"} {
		o := &options{only: only, pods: 7}
		var out strings.Builder
		newReport(t.Context(), o).print(&out)
		want := regexp.MustCompile(`^bench-load` + regexp.QuoteMeta(strings.Repeat(" --only "+only, min(1, len(only)))) +
			`, \d{4}-\d\d-\d\d, commit \S+, \w+/\w+, \d+ processors(, .+)?\.\n`)
		if !want.MatchString(out.String()) {
			t.Errorf("%q: the header is not %s:\n%s", only, want, &out)
		}
		if got := o.name(); got != name {
			t.Errorf("%q: the report's name is %s instead of %s", only, got, name)
		}
	}
	for info, want := range map[string]string{
		"processor\t: 0\nmodel name\t: AMD EPYC 9V74 80-Core Processor \nmodel name\t: other\n": ", AMD EPYC 9V74 80-Core Processor",
		"processor\t: 0\nBogoMIPS\t: 50.00\n":                                                   "",
	} {
		if got := processorModel([]byte(info)); got != want {
			t.Errorf("%q: %q instead of %q", info, got, want)
		}
	}
}

// A watcher counts each event once, wherever reads split the event.
func TestWatcherCountsEvents(t *testing.T) {
	random := rand.New(rand.NewPCG(cluster.Seed(), 0))
	near, far := net.Pipe()
	c := &crowd{}
	from := bufio.NewReaderSize(near, 16)
	w := &watcher{client: &client{conn: near, from: from, buf: make([]byte, 64)}, events: from}
	c.watchers = []*watcher{w}
	c.reading.Go(func() { w.read(c) })
	const events = 500
	var sent bytes.Buffer
	chunks := httputil.NewChunkedWriter(&sent)
	for i := range events {
		fmt.Fprintf(chunks, `{"type":"MODIFIED","object":{"metadata":{"name":"%s"}}}`+"\n", strings.Repeat("x", i%90))
	}
	for sent.Len() > 0 {
		if _, err := far.Write(sent.Next(1 + random.IntN(100))); err != nil {
			t.Fatal(err)
		}
	}
	far.Close()
	c.close()
	if got := c.got.Load(); got != events || len(w.times) != events {
		t.Errorf("%d events, %d times, want %d", got, len(w.times), events)
	}
}

// The floor writes every frame to every connection.
func TestFloor(t *testing.T) {
	frames, in := io.Pipe()
	out, said, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serveFloor(frames, said, "") }()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	s, err := newServer(theFloor, "http://"+strings.TrimSpace(line), nil, "", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	const watchers, frame = 3, "5\r\nabc}\n\r\n"
	c, err := s.watch(t.Context(), watchers, func(int) string { return "/" })
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := in.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.wait(t.Context(), 2*watchers); err != nil {
		t.Error(err)
	}
	in.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	c.close()
	out.Close()
	said.Close()
}

// A sample of perf script counts for the part to which its calls belong.
func TestPartsOf(t *testing.T) {
	const samples = `
	ffffffff8160ea04 mod_timer
	ffffffff8160ea04 tcp_sendmsg_locked
	ffffffff816b9706 ksys_write
	ffffffff821ed511 do_syscall_64
	            de6e internal/runtime/syscall/linux.Syscall6
	            de6e crypto/tls.(*Conn).Write

	ffffffffc0be9d39 [unknown]
	ffffffff8160ea04 tcp_sendmsg_locked
	ffffffff816b9706 __sys_sendto
	            de6e crypto/tls.(*Conn).Write


	ffffffff81589d39 finish_task_switch.isra.0
	ffffffff8158ea06 irqentry_exit_to_user_mode
	            de6e crypto/internal/fips140/aes/gcm.gcmAesEnc.abi0

	            de6e crypto/internal/fips140/aes/gcm.gcmAesEnc.abi0
	            de6e crypto/tls.(*Conn).Write

	            de6e crypto/tls.(*Conn).Write

	            de6e [unknown]

	ffffffffc0be9d39 [unknown]
	            de6e crypto/tls.(*Conn).Write
`
	want := map[string]int{partWrite: 2, partKernel: 1, partEncryption: 1, partProgram: 1, partUnknown: 2}
	if got := partsOf([]byte(samples)); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
