package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// shell is a command that runs a script in place of a server.
func shell(t *testing.T, script string) command {
	t.Helper()
	return command{
		path:  "/bin/sh",
		args:  []string{"-c", script},
		ready: "ready: ",
		log:   filepath.Join(t.TempDir(), "log"),
	}
}

// obedient returns a script that runs the given commands and exits with the given code on SIGTERM.
func obedient(commands string, code int) string {
	// A trap runs during a wait, but not while a command runs in the foreground.
	return fmt.Sprintf("trap 'kill -9 $!; exit %d' TERM\nsleep 600 >/dev/null 2>&1 &\n%s\nwait\n", code, commands)
}

func TestProcessAnnouncesItself(t *testing.T) {
	p, rest, err := start(t.Context(), shell(t, `echo warming up >&2; echo not yet ready: no; printf 'ready: at'; echo ' last'; exec sleep 600`))
	if err != nil {
		t.Fatal(err)
	}
	defer p.kill()
	if rest != "at last" {
		t.Errorf("announced %q", rest)
	}
	if got, want := p.output(), "warming up\nnot yet ready: no\nready: at last\n"; got != want {
		t.Errorf("log %q, want %q", got, want)
	}
}

func TestProcessThatNeverIsReady(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		ctx    context.Context
		script string
		limit  time.Duration
		want   string
	}{
		"exits":     {t.Context(), `echo "port taken" >&2; exit 1`, Limit, "ended before it was ready: exit status 1"},
		"exits 0":   {t.Context(), `echo "port taken" >&2`, Limit, "ended before it was ready: exit status 0"},
		"hangs":     {t.Context(), `exec sleep 600`, time.Millisecond, "was not ready after 1ms"},
		"cancelled": {cancelled, `exec sleep 600`, Limit, "context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			c := shell(t, test.script)
			c.limit = test.limit
			_, _, err := start(test.ctx, c)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if strings.Contains(test.script, "port taken") && !strings.Contains(err.Error(), "\nport taken") {
				t.Errorf("%v does not show what the process printed", err)
			}
		})
	}
}

func TestProcessStop(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		want   string // empty: no error
	}{
		"orderly":  {obedient("echo ready: up", 0), ""},
		"with 3":   {obedient("echo ready: up", 3), "exit status 3"},
		"unheeded": {`echo ready: up; exec sleep 600`, "signal: terminated"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, err := start(t.Context(), shell(t, test.script))
			if err != nil {
				t.Fatal(err)
			}
			err = p.stop()
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// orphanLog is the name of an environment variable with the path of a child's log. If it is set,
// the test binary starts the child and then waits to be killed.
const orphanLog = "CLUSTER_TEST_ORPHAN_LOG"

func orphan(fifo string) {
	c := command{path: "/bin/sh", args: []string{"-c", "echo ready: up; exec sleep 600"}, ready: "ready: ", log: fifo}
	if _, _, err := start(context.Background(), c); err != nil {
		panic(err)
	}
	os.Stdout.WriteString("started\n")
	select {}
}

// Here the log is a pipe. It ends when no process has it open for writing, neither the parent nor
// the child.
func TestNothingOutlivesItsParent(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "log")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), orphanLog+"="+fifo)
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	log, err := os.Open(fifo)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := io.ReadFull(stdout, make([]byte, len("started\n"))); err != nil {
		t.Fatal(err)
	}

	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(log)
		closed <- err
	}()
	if err := Receive(t, "the end of the child", closed); err != nil {
		t.Fatal(err)
	}
	parent.Wait()
}
