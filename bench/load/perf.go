package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// What a delivery consists of.
const (
	partSend       = "the kernel sends"
	partKernel     = "the kernel, all else"
	partEncryption = "encryption"
	partProgram    = "the program, all else"
)

var parts = []string{partSend, partKernel, partEncryption, partProgram}

// profileFanOut shows by perf(1) what a delivery consists of, ours and the floor's, in a round of its own: perf makes
// everything dearer. Where it is missing, or not allowed, that is said.
func (b *bench) profileFanOut(ctx context.Context, scenario string, watchers, rate int, servers []written) error {
	rows := make([]row, len(parts))
	for i, part := range parts {
		rows[i] = row{Scenario: scenario + ": profile: " + part, Clients: watchers, Unit: "µs/delivery", Value: map[string]float64{}}
	}
	for _, s := range servers {
		if s.name == kubeAPIServer { // much of that is about the writes
			continue
		}
		p := perf{file: filepath.Join(b.dir, s.name+".perf")}
		got, err := b.deliver(ctx, s, watchers, rate, &delay{}, func() error { return p.start(ctx, s.pid) })
		samples, failed := p.stop(ctx)
		if err = errors.Join(err, failed); err != nil {
			b.say("  no profile: %v", err)
			return context.Cause(ctx)
		}
		took := partsOf(samples)
		for i, part := range parts {
			rows[i].Value[s.name] = 1e6 * float64(took[part]) / perfRate / float64(got.Units)
		}
	}
	b.report.Rows = append(b.report.Rows, rows...)
	return nil
}

// perf is perf(1) at work on a process.
type perf struct {
	file string
	cmd  *exec.Cmd
	said bytes.Buffer
}

// perfRate is how often perf looks at a processor that the process has, in Hz. Nothing else happens that often.
const perfRate = 4999

// start begins. It ends by itself when the process does.
func (p *perf) start(ctx context.Context, pid int) error {
	p.cmd = exec.CommandContext(ctx, "perf", "record", "-F", strconv.Itoa(perfRate), "-e", "cpu-clock", "-g", "-p", strconv.Itoa(pid), "-o", p.file)
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	return p.cmd.Start()
}

// stop returns what perf script says of what perf saw.
func (p *perf) stop(ctx context.Context) ([]byte, error) {
	if p.cmd == nil || p.cmd.Process == nil {
		return nil, nil // it has not begun, and that was said
	}
	signalled := p.cmd.Process.Signal(os.Interrupt)
	ended := p.cmd.Wait() // an error even if it has done what it was told
	if _, err := os.Stat(p.file); err != nil {
		return nil, fmt.Errorf("perf record: %w: %s", errors.Join(signalled, ended), bytes.TrimSpace(p.said.Bytes()))
	}
	samples, err := exec.CommandContext(ctx, "perf", "script", "-i", p.file, "-F", "ip,sym,dso").Output()
	if err != nil {
		return nil, fmt.Errorf("perf script: %w", err)
	}
	return samples, nil
}

// partsOf counts samples: a paragraph each, a call in a line, the innermost first.
func partsOf(samples []byte) map[string]int {
	count := map[string]int{}
	var calls []string
	sample := func() {
		if len(calls) > 0 {
			count[partOf(calls)]++
		}
		calls = nil
	}
	for lines := bufio.NewScanner(bytes.NewReader(samples)); lines.Scan(); {
		if call := lines.Text(); strings.TrimSpace(call) != "" {
			calls = append(calls, call)
		} else {
			sample()
		}
	}
	sample()
	return count
}

func partOf(calls []string) string {
	has := func(what ...string) bool {
		return slices.ContainsFunc(calls, func(call string) bool {
			return slices.ContainsFunc(what, func(w string) bool { return strings.Contains(call, w) })
		})
	}
	kernel := strings.Contains(calls[0], "[kernel") || strings.Contains(calls[0], "[guest.kernel")
	switch {
	case kernel && has(" ksys_write ", " __sys_sendto "):
		return partSend
	case kernel:
		return partKernel
	case has(" crypto/internal/fips140/"):
		return partEncryption
	}
	return partProgram
}
