package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// SIGHUP never ends a proxy: neither while it waits for upstream at its start, nor while it drains.
func TestHangups(t *testing.T) {
	asked, answer := make(chan string, 4), make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" { // asked when the feeds begin
			return
		}
		asked <- r.URL.Path
		select {
		case <-answer:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "{}")
	}))
	defer api.Close()
	kubeconfig := writeFile(t, filepath.Join(t.TempDir(), "config"), fmt.Sprintf(
		`{current-context: a, contexts: [{name: a, context: {cluster: b}}], clusters: [{name: b, cluster: {server: %q}}]}`, api.URL))

	program := exec.CommandContext(t.Context(), os.Args[0], "serve", "--kubeconfig", kubeconfig, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	program.Env = append(os.Environ(), asProgram+"=1")
	stdout, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := program.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	bound := time.AfterFunc(time.Minute, func() { _ = program.Process.Kill() })
	defer bound.Stop()
	said, logged := bufio.NewScanner(stdout), bufio.NewScanner(stderr)
	send := func(s os.Signal) {
		t.Helper()
		if err := program.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	until := func(text string) {
		t.Helper()
		for logged.Scan() {
			if strings.Contains(logged.Text(), text) {
				return
			}
		}
		t.Fatalf("it ended and did not say %q: %v", text, program.Wait())
	}

	if path := <-asked; path != "/version" {
		t.Fatalf("it asks for %s", path)
	}
	send(syscall.SIGHUP)
	answer <- struct{}{}
	if !said.Scan() {
		t.Fatalf("it ended: %v", program.Wait())
	}
	_, address, _ := strings.Cut(said.Text(), "ready: ")
	address, _, _ = strings.Cut(address, " ")
	until("there is no configuration file to read again")

	got := make(chan error, 1)
	go func() {
		resp, err := http.Get(address + "/slow") //nolint:noctx // the program's end ends it
		if err == nil {
			err = resp.Body.Close()
		}
		got <- err
	}()
	<-asked
	send(syscall.SIGTERM)
	until("drain")
	send(syscall.SIGHUP)
	until("there is no configuration file to read again")
	answer <- struct{}{}
	if err := <-got; err != nil {
		t.Errorf("the request that it drained: %v", err)
	}
	until("stopped")
	if err := program.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}
