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
)

// obedient returns a script that runs the given commands and exits with the given code on SIGTERM.
func obedient(commands string, code int) string {
	// A trap runs during a wait, but not while a command runs in the foreground.
	return fmt.Sprintf("trap 'kill -9 $!; exit %d' TERM\nsleep 600 >/dev/null 2>&1 &\n%s\nwait\n", code, commands)
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
			p, _, err := start(t.Context(), command{path: "/bin/sh", args: []string{"-c", test.script}, ready: "ready: ", log: filepath.Join(t.TempDir(), "log")})
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
