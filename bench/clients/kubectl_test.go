package clients

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// front is one of the two servers as kubectl reaches it.
type front struct {
	name   string
	binary string
	args   []string
	home   string // kubectl keeps discovery there
}

// fronts are the apiserver and the proxy, in this order.
func (w *world) fronts(t *testing.T) [2]front {
	t.Helper()
	binary := cluster.KubectlT(t)
	return [2]front{
		{"apiserver", binary, []string{"--kubeconfig", w.api.Kubeconfig}, w.dir},
		{"proxy", binary, []string{"--server", w.proxy.URL, "--kubeconfig", os.DevNull}, w.dir},
	}
}

// invocation is what kubectl is asked to do.
type invocation struct {
	args  []string
	stdin string
	env   []string
}

func kubectl(args ...string) invocation { return invocation{args: args} }

func (i invocation) reading(stdin string) invocation {
	i.stdin = stdin
	return i
}

func (i invocation) with(env ...string) invocation {
	i.env = append(slices.Clip(i.env), env...)
	return i
}

// outcome is what a command has left behind.
type outcome struct {
	stdout, stderr string
	code           int // -1 if a signal ended it
}

// command makes a process in a process group of its own, so that a Ctrl-C reaches the test alone.
func (f front) command(ctx context.Context, i invocation) *exec.Cmd {
	cmd := exec.CommandContext(ctx, f.binary, append(slices.Clip(f.args), i.args...)...)
	cmd.Env = append(environment(f.home), i.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second
	return cmd
}

// environment is the least that a command needs, so that nothing of the user's own configuration plays a part.
func environment(home string) []string {
	return []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + home}
}

// run runs kubectl to its end.
func (f front) run(t *testing.T, i invocation) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := f.command(ctx, i)
	cmd.Stdin = strings.NewReader(i.stdin)
	return finish(t, cmd)
}

// finish runs a command and collects what it says.
func finish(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", strings.Join(cmd.Args, " "), err)
	}
	return outcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// must is run for what has to succeed.
func (f front) must(t *testing.T, i invocation) string {
	t.Helper()
	o := f.run(t, i)
	if o.code != 0 {
		t.Fatalf("%s: kubectl %s: exit code %d\n%s%s", f.name, strings.Join(i.args, " "), o.code, o.stdout, o.stderr)
	}
	return o.stdout
}

// running is a kubectl that goes on until it is stopped.
type running struct {
	stdin  io.WriteCloser
	stdout io.Reader
	stderr *bytes.Buffer // read it after wait
	cmd    *exec.Cmd
	cancel context.CancelFunc
}

// start starts kubectl. It is killed when the test ends, at the latest.
func (f front) start(t *testing.T, i invocation) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	r := &running{cmd: f.command(ctx, i), cancel: cancel, stderr: &bytes.Buffer{}}
	r.cmd.Stderr = r.stderr
	var err error
	if r.stdin, err = r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if r.stdout, err = r.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.kill() })
	return r
}

// kill ends kubectl without giving it time to say goodbye.
func (r *running) kill() {
	r.cancel()
	r.cmd.Wait()
}

// wait waits for kubectl to end by itself and returns its exit code.
func (r *running) wait() int {
	r.cmd.Wait()
	return r.cmd.ProcessState.ExitCode()
}

// line reads the next line of standard output, without its newline.
func (r *running) line(t *testing.T) string {
	t.Helper()
	type read struct {
		line string
		err  error
	}
	got := make(chan read, 1)
	go func() {
		// Byte by byte: what follows the line may be for somebody else.
		var line []byte
		var b [1]byte
		for {
			if _, err := r.stdout.Read(b[:]); err != nil {
				got <- read{string(line), err}
				return
			}
			if b[0] == '\n' {
				got <- read{string(line), nil}
				return
			}
			line = append(line, b[0])
		}
	}()
	next := receive(t, "a line from kubectl "+strings.Join(r.cmd.Args[1:], " "), got)
	if next.err != nil {
		r.kill()
		t.Fatalf("kubectl ended after %q: %v\n%s", next.line, next.err, r.stderr)
	}
	return next.line
}
