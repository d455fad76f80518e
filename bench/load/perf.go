package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The parts of a delivery.
const (
	// On loopback, partWrite includes the receiver's part of TCP.
	partWrite      = "write(2) or sendto(2), receipt included"
	partKernel     = "the kernel, all else" // mostly the scheduling of threads
	partEncryption = "encryption"
	partProgram    = "the program, all else"
	partUnknown    = "unknown" // the report omits it; if it is large, there is no profile
)

var parts = []string{partWrite, partKernel, partEncryption, partProgram}

// profileFanOut uses perf(1) to show the parts of a delivery, for the proxy and for the floor. It
// uses a separate round, because perf increases all costs. If perf is missing or not allowed, or
// its result does not match the round, the report says so.
func (b *bench) profileFanOut(ctx context.Context, scenario string, watchers, rate int, servers []written) error {
	rows := make([]row, len(parts))
	for i, part := range parts {
		rows[i] = row{Scenario: scenario, Clients: watchers}.values("profile: "+part, "µs/delivery")
	}
	for _, s := range servers {
		if s.name == kubeAPIServer { // it does much work for the writes
			continue
		}
		p := &perf{file: filepath.Join(b.dir, fmt.Sprintf("%s-%d.perf", s.name, len(b.report.Rows)))}
		got, err := b.deliver(ctx, s, watchers, rate, &delay{}, p)
		if err != nil {
			return err
		}
		took, err := p.parts(ctx)
		if err == nil {
			err = plausible(took, got)
		}
		if err != nil {
			b.say("  no profile: %v", err)
			return context.Cause(ctx)
		}
		for i, part := range parts {
			rows[i].Value[s.name] = 1e6 * took[part] / float64(got.Units)
		}
	}
	b.report.Rows = append(b.report.Rows, rows...)
	return nil
}

// plausible compares perf's total with the server's processor time.
func plausible(took map[string]float64, got spent) error {
	const tolerance = 0.1
	sum := 0.0
	for _, seconds := range took {
		sum += seconds
	}
	if took[partUnknown] > tolerance*sum {
		return fmt.Errorf("perf does not know the functions of %.3f s of %.3f s: the program has no symbols, or the kernel's are hidden", took[partUnknown], sum)
	}
	if math.Abs(sum-got.Seconds) > tolerance*got.Seconds {
		return fmt.Errorf("perf saw %.3f s, the server took %.3f s", sum, got.Seconds)
	}
	return nil
}

// perf is a perf(1) that samples a process. The method parts returns its errors.
type perf struct {
	file     string
	cmd      *exec.Cmd
	said     bytes.Buffer
	control  *os.File // receives commands
	answered *os.File
	ended    bool
	err      error
}

const (
	// perfRate is the sampling rate, in Hz, of a processor that runs the process. No other activity
	// has this rate.
	perfRate = 4999
	// perfPatience limits the time in which perf must execute a command.
	perfPatience = 10 * time.Second
)

// begin starts perf and returns when perf samples.
func (p *perf) begin(ctx context.Context, pid int) {
	commands, control, err := os.Pipe()
	if err != nil {
		p.err = err
		return
	}
	defer commands.Close() //nolint:errcheck // perf has it
	answered, answers, err := os.Pipe()
	if err != nil {
		p.err = err
		return
	}
	defer answers.Close() //nolint:errcheck // perf has it
	p.control, p.answered = control, answered
	p.cmd = exec.CommandContext(ctx, "perf", "record", "-F", strconv.Itoa(perfRate), "--strict-freq", "-e", "cpu-clock", "-g", "-N",
		"-p", strconv.Itoa(pid), "-o", p.file, "-D", "-1", "--control", "fd:3,4")
	p.cmd.ExtraFiles = []*os.File{commands, answers}
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	if p.err = p.cmd.Start(); p.err == nil {
		p.err = p.tell("enable")
	}
}

// tell sends a command and returns when perf has executed it.
func (p *perf) tell(command string) error {
	if _, err := p.control.WriteString(command + "\n"); err != nil {
		return err
	}
	if err := p.answered.SetReadDeadline(time.Now().Add(perfPatience)); err != nil {
		return err
	}
	_, err := p.answered.Read(make([]byte, 16)) // "ack"
	return err
}

// end makes perf stop and write its samples. Only the first call has an effect.
func (p *perf) end() {
	if p.ended {
		return
	}
	p.ended = true
	for _, command := range []string{"disable", "stop"} {
		if p.err == nil {
			p.err = p.tell(command)
		}
	}
	if p.cmd != nil && p.cmd.Process != nil {
		if p.err != nil {
			_ = p.cmd.Process.Kill() // perf may have ended
		}
		p.err = errors.Join(p.err, p.cmd.Wait())
	}
	if p.control != nil {
		_, _ = p.control.Close(), p.answered.Close()
	}
}

// parts returns the seconds of each part.
func (p *perf) parts(ctx context.Context) (map[string]float64, error) {
	if p.err != nil {
		return nil, fmt.Errorf("perf record: %w: %s", p.err, bytes.TrimSpace(p.said.Bytes()))
	}
	script := exec.CommandContext(ctx, "perf", "script", "-i", p.file, "-F", "ip,sym")
	samples, err := script.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return nil, fmt.Errorf("perf script: %w", err)
	}
	took := map[string]float64{}
	for part, n := range partsOf(samples) {
		took[part] = float64(n) / perfRate
	}
	return took, nil
}

// partsOf counts the samples of each part. Each sample is a paragraph, with one call a line, the
// innermost call first.
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

// partOf returns the part of a sample. The innermost call shows whether the sample belongs to the
// kernel.
func partOf(calls []string) string {
	kernel := inKernel(calls[0])
	if !slices.ContainsFunc(calls, func(call string) bool { return inKernel(call) == kernel && !strings.HasSuffix(call, " [unknown]") }) {
		return partUnknown
	}
	has := func(what ...string) bool {
		return slices.ContainsFunc(calls, func(call string) bool {
			return slices.ContainsFunc(what, func(w string) bool { return strings.HasSuffix(call, " "+w) || strings.Contains(call, " "+w+"/") })
		})
	}
	switch {
	case kernel && has("ksys_write", "__sys_sendto"):
		return partWrite
	case kernel:
		return partKernel
	case has("crypto/internal/fips140"):
		return partEncryption
	}
	return partProgram
}

// inKernel reports whether a call's address is in the kernel: these addresses begin with one bits.
func inKernel(call string) bool {
	address, _, _ := strings.Cut(strings.TrimSpace(call), " ")
	ip, err := strconv.ParseUint(address, 16, 64)
	return err == nil && ip>>63 == 1
}
