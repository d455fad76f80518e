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

// command is a program to start, and the line by which it announces that it is ready.
type command struct {
	path  string
	args  []string
	ready string   // prefix of the line that announces readiness
	log   string   // file to which all output is appended
	env   []string // nil: the environment of this process
	// unshare makes the child see its own mounts only.
	unshare bool
}

// process is a child that has announced that it is ready. Its goroutine ends when the child ends.
type process struct {
	name   string
	log    string
	child  *os.Process
	exited chan struct{}
	err    error // how the process ended; read it after exited is closed
	killed bool  // killed by kill
}

// start returns when the command is ready, together with the rest of the line that announces this.
// If ctx ends or the command exits earlier, start ends the command and returns an error. If ctx has
// no deadline, Limit limits the time.
func start(ctx context.Context, c command) (*process, string, error) {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, "", err
	}
	announced := make(chan string, 1)
	cmd := exec.Command(c.path, c.args...)
	cmd.Stdout = &announcement{prefix: []byte(c.ready), log: log, announced: announced}
	cmd.Stderr = log
	cmd.WaitDelay = Limit // a grandchild may keep the pipe open
	cmd.Env = c.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if c.unshare {
		unshareMounts(cmd.SysProcAttr)
	}

	p := &process{name: c.path, log: c.log, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Pdeathsig applies to the thread that forked, not to the process. So this thread waits
		// here until the child ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		p.child = cmd.Process
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
		log.Close() //nolint:errcheck // nothing is written any more
		if err == nil {
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, "", fmt.Errorf("cannot start %s: %w", c.path, err)
	}

	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Limit)
		defer cancel()
	}
	select {
	case rest := <-announced:
		return p, rest, nil
	case <-p.exited:
		err = fmt.Errorf("%s ended before it was ready: %w", p.name, p.exit())
	case <-ctx.Done():
		err = fmt.Errorf("%s was not ready: %w", p.name, context.Cause(ctx))
	}
	p.kill()
	return nil, "", p.withOutput(err)
}

// stop ends the process with SIGTERM, or with SIGKILL if that takes more than Limit. It returns nil
// if the process ended with code 0 or was already ended by kill.
func (p *process) stop() error {
	if p.killed {
		return nil
	}
	p.child.Signal(syscall.SIGTERM) //nolint:errcheck // fails if the process has already ended, and then exited is closed
	limit := time.NewTimer(Limit)
	defer limit.Stop()
	select {
	case <-p.exited:
		if p.err != nil {
			return p.withOutput(fmt.Errorf("%s failed: %w", p.name, p.err))
		}
		return nil
	case <-limit.C:
		p.kill()
		return p.withOutput(fmt.Errorf("%s did not end within %v of SIGTERM", p.name, Limit))
	}
}

// kill ends the process with SIGKILL and waits for its end.
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

// contentOf returns the content of a log, or the reason why it cannot be read.
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

// tail returns the last lines of a log, for an error message.
func tail(log string) string {
	const lines = 30
	all := strings.Split(strings.TrimRight(log, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// announcement receives a child's standard output. It writes everything to the log and looks for
// the line that announces that the child is ready.
type announcement struct {
	prefix    []byte
	log       *os.File
	announced chan<- string // receives the line; nil after that
	line      []byte        // the current line, still without a newline
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
	a.log.Write(b) //nolint:errcheck // the log is only for people to read
	return len(b), nil
}
