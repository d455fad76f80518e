package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// stopLimit is how long a process may take to end after SIGTERM, before it is killed.
const stopLimit = 20 * time.Second

// command is a program to start, and the sign that it is ready.
type command struct {
	path  string
	args  []string
	ready string        // what the line that announces readiness begins with
	limit time.Duration // how long that may take
	log   string        // file that everything printed is appended to
}

// process is a child that has announced that it is ready. Its goroutine ends with it.
type process struct {
	name   string
	log    string
	child  *os.Process
	exited chan struct{}
	err    error // how it ended; read it after exited is closed
	killed bool  // by kill
}

// start returns when the command is ready, with the rest of the line that announces it. If ctx
// ends, the limit passes or the command exits before that, start returns an error. The command then
// no longer runs.
func start(ctx context.Context, c command) (*process, string, error) {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, "", err
	}
	defer log.Close() //nolint:errcheck // the child has its own

	announced := make(chan string, 1)
	cmd := exec.Command(c.path, c.args...)
	cmd.Stdout = &announcement{prefix: []byte(c.ready), log: log, announced: announced}
	cmd.Stderr = log
	cmd.WaitDelay = time.Second // in case a grandchild holds the pipe
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}

	p := &process{name: c.path, log: c.log, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Pdeathsig follows the thread that forked, not the process. So that thread waits here for
		// the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		p.child = cmd.Process
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, "", fmt.Errorf("cannot start %s: %w", c.path, err)
	}

	limit := time.NewTimer(c.limit)
	defer limit.Stop()
	select {
	case rest := <-announced:
		return p, rest, nil
	case <-p.exited:
		err = fmt.Errorf("%s ended before it was ready: %w", p.name, p.exit())
	case <-limit.C:
		err = fmt.Errorf("%s was not ready after %v", p.name, c.limit)
	case <-ctx.Done():
		err = fmt.Errorf("%s was not ready: %w", p.name, context.Cause(ctx))
	}
	p.kill()
	return nil, "", p.withOutput(err)
}

// stop ends the process with SIGTERM, or with SIGKILL if it takes too long. It returns an error
// unless the process ends by itself with code 0, or kill has ended it before.
func (p *process) stop() error {
	if p.killed {
		return nil
	}
	p.child.Signal(syscall.SIGTERM) //nolint:errcheck // it fails if the process has ended, which exited tells
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case <-p.exited:
		if p.err != nil {
			return p.withOutput(fmt.Errorf("%s failed: %w", p.name, p.err))
		}
		return nil
	case <-limit.C:
		p.kill()
		return p.withOutput(fmt.Errorf("%s did not end within %v of SIGTERM", p.name, stopLimit))
	}
}

// kill ends the process by SIGKILL and waits until it is gone.
func (p *process) kill() {
	p.killed = true
	p.child.Kill() //nolint:errcheck // as in stop
	<-p.exited
}

// exit describes how the process ended, including exit code 0.
func (p *process) exit() error {
	if p.err == nil {
		return errors.New("exit status 0")
	}
	return p.err
}

func (p *process) output() string { return contentOf(p.log) }

// contentOf is what is in a log, or why it cannot be read.
func contentOf(log string) string {
	b, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (p *process) withOutput(err error) error {
	return fmt.Errorf("%w\n--- end of %s\n%s", err, p.log, tail(p.output()))
}

// tail returns the last lines of a log that are worth showing.
func tail(log string) string {
	const lines = 30
	all := strings.Split(strings.TrimRight(log, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// announcement is a child's standard output. It passes everything on to the log and looks for the
// line that announces that the child is ready.
type announcement struct {
	prefix    []byte
	log       *os.File
	announced chan<- string // takes one; nil once it has
	line      []byte        // not yet ended by a newline
}

// Write implements io.Writer.
func (a *announcement) Write(b []byte) (int, error) {
	if a.announced != nil {
		a.line = append(a.line, b...)
		for line := range bytes.Lines(a.line) {
			rest, found := bytes.CutPrefix(line, a.prefix)
			if !bytes.HasSuffix(line, []byte("\n")) {
				a.line = line
				break
			}
			a.line = nil
			if found {
				a.announced <- strings.TrimSpace(string(rest))
				a.announced = nil
				break
			}
		}
	}
	a.log.Write(b) //nolint:errcheck // it is there for people to read
	return len(b), nil
}
