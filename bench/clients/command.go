package clients

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Front is a server as kubectl reaches it.
type Front struct {
	Name string
	Args []string
	Home string // kubectl keeps its discovery cache there
}

// Fronts returns the apiserver and the proxy, in this order.
func (w *World) Fronts(tb testing.TB) [2]Front {
	tb.Helper()
	return [2]Front{
		{"apiserver", []string{"--kubeconfig", w.API.Kubeconfig}, w.Dir},
		FrontOf(tb, w.Proxy, w.Dir),
	}
}

// FrontOf returns a proxy for kubectl with the given home directory.
func FrontOf(tb testing.TB, p *cluster.Proxy, home string) Front {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	cluster.MustT(tb, p.WriteKubeconfig(path))
	return Front{"proxy", []string{"--kubeconfig", path}, home}
}

// Invocation is one call of kubectl.
type Invocation struct {
	Args  []string
	Stdin string
	Env   []string
}

// Kubectl returns an invocation without input.
func Kubectl(args ...string) Invocation { return Invocation{Args: args} }

// Reading returns the invocation with standard input.
func (i Invocation) Reading(stdin string) Invocation {
	i.Stdin = stdin
	return i
}

// With returns the invocation with further environment variables.
func (i Invocation) With(env ...string) Invocation {
	i.Env = append(slices.Clip(i.Env), env...)
	return i
}

// Outcome is the result of a command.
type Outcome struct {
	Stdout, Stderr string
	Code           int // -1 if a signal ended it
}

// Command creates a process in a process group of its own, so that a Ctrl-C reaches only the test.
// Its environment contains none of the user's own configuration.
func Command(ctx context.Context, home, binary string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + home, "GORACE=" + os.Getenv("GORACE")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second
	return cmd
}

func (f Front) command(ctx context.Context, tb testing.TB, i Invocation) *exec.Cmd {
	tb.Helper()
	cmd := Command(ctx, f.Home, cluster.KubectlT(tb), append(slices.Clip(f.Args), i.Args...)...)
	cmd.Env = append(cmd.Env, i.Env...)
	return cmd
}

// Run runs kubectl until it ends.
func (f Front) Run(tb testing.TB, i Invocation) Outcome {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), cluster.Limit)
	defer cancel()
	cmd := f.command(ctx, tb, i)
	cmd.Stdin = strings.NewReader(i.Stdin)
	return Finish(tb, cmd)
}

// Finish runs a command and collects its output.
func Finish(tb testing.TB, cmd *exec.Cmd) Outcome {
	tb.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		tb.Fatalf("%s: %v", strings.Join(cmd.Args, " "), err)
	}
	return Outcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// Must is Run for a command that must succeed.
func (f Front) Must(tb testing.TB, i Invocation) string {
	tb.Helper()
	o := f.Run(tb, i)
	if o.Code != 0 {
		tb.Fatalf("%s: kubectl %s: exit code %d\n%s%s", f.Name, strings.Join(i.Args, " "), o.Code, o.Stdout, o.Stderr)
	}
	return o.Stdout
}

// Running is a kubectl that runs until it is stopped.
type Running struct {
	Stdin  io.WriteCloser
	Stdout io.Reader
	Stderr *bytes.Buffer // read it after Wait
	cmd    *exec.Cmd
	cancel context.CancelFunc
}

// Start starts kubectl. If it still runs at the end of the test, it is killed.
func (f Front) Start(tb testing.TB, i Invocation) *Running {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 2*cluster.Limit)
	r := &Running{cmd: f.command(ctx, tb, i), cancel: cancel, Stderr: &bytes.Buffer{}}
	r.cmd.Stderr = r.Stderr
	var err error
	if r.Stdin, err = r.cmd.StdinPipe(); err == nil {
		if r.Stdout, err = r.cmd.StdoutPipe(); err == nil {
			err = r.cmd.Start()
		}
	}
	cluster.MustT(tb, err)
	tb.Cleanup(r.Kill)
	return r
}

// Kill kills kubectl.
func (r *Running) Kill() {
	r.cancel()
	r.Wait()
}

// Wait waits until kubectl ends by itself, and returns its exit code.
func (r *Running) Wait() int {
	_ = r.cmd.Wait()
	return r.cmd.ProcessState.ExitCode()
}

// Line reads the next line of standard output, without its newline. It reads byte by byte, because
// another reader may need the bytes after the line.
func (r *Running) Line(tb testing.TB) string {
	tb.Helper()
	late := time.AfterFunc(cluster.Limit, r.cancel)
	defer late.Stop()
	var line []byte
	for b := make([]byte, 1); ; line = append(line, b[0]) {
		if _, err := r.Stdout.Read(b); err != nil {
			r.Kill()
			tb.Fatalf("kubectl %s ended after %q: %v\n%s", strings.Join(r.cmd.Args[1:], " "), line, err, r.Stderr)
		}
		if b[0] == '\n' {
			return string(line)
		}
	}
}
