package main

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
)

// SIGHUP never ends a proxy, not even while the proxy waits for upstream at its start or drains.
func TestHangups(t *testing.T) {
	asked, answer := make(chan string, 4), make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" { // requested when the feeds start
			return
		}
		asked <- r.URL.Path
		select {
		case <-answer:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(api.Close)
	log, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	program := start(t, api.URL, stderr)
	stderr.Close()
	logged := bufio.NewScanner(log)
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
	address, _ := program.ready(t)
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
	until("draining: ending watches")
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
