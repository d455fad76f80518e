package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/config"
)

// A reload reads the file once, and loads the text that it has compared. A file that could not be read
// is loaded as soon as it is there again, even if it has not changed.
func TestReloadReadsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "config.yaml")
		write := func(text string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Error(err)
			}
		}
		write("a")
		var parsed []string
		hangups, refused := make(chan os.Signal), newRefusedGauge(prometheus.NewRegistry())
		r := &reloader{
			file: path, known: []byte("a"), hangups: hangups, running: config.Default(), apply: func(*config.ProxyConfiguration) {}, log: zap.NewNop(), refused: refused,
			parse: func(text []byte) (*config.ProxyConfiguration, error) {
				parsed = append(parsed, string(text))
				write("d") // a read of the file would have this
				if string(text) == "c" {
					return nil, errors.New("malformed")
				}
				return config.Default(), nil
			},
		}
		go r.run(t.Context())
		wait := func(want string) {
			t.Helper()
			time.Sleep(6 * lookForChanges)
			synctest.Wait()
			got := fmt.Sprint(parsed, " ", testutil.ToFloat64(refused))
			if got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		wait("[] 0")
		write("b")
		wait("[b d] 0")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		wait("[b d] 0")
		hangups <- syscall.SIGHUP
		wait("[b d] 1")
		write("d")
		wait("[b d d] 0")
		write("c")
		wait("[b d d c d] 0")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		hangups <- syscall.SIGHUP
		synctest.Wait()
		write("")
		wait("[b d d c d  d] 0")
	})
}

// A refused file changes nothing, and the next file is compared with the configuration in effect.
func TestRefusedReload(t *testing.T) {
	level, refused := "info", newRefusedGauge(prometheus.NewRegistry())
	flags := &serveFlags{}
	r := &reloader{
		parse: flags.configuration, running: config.Default(), log: zap.NewNop(), refused: refused,
		apply: func(c *config.ProxyConfiguration) { level = c.LogLevel },
	}
	for _, test := range []struct {
		text, level string
		refused     float64
	}{
		{"logLevel: debug", "debug", 0},
		{"logLevel: loud", "debug", 1},
		{"logLevel: warn\nlisten: 127.0.0.1:7", "debug", 1},
		{"logLevel: error", "error", 0},
	} {
		r.reload([]byte("apiVersion: " + config.APIVersion + "\nkind: " + config.Kind + "\n" + test.text + "\n"))
		if got := testutil.ToFloat64(refused); level != test.level || got != test.refused {
			t.Errorf("%q: %s is in effect, refused: %v", test.text, level, got)
		}
	}
}

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
		program.logs(t, logged, text)
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

// logs waits until the program logs a text.
func (p *program) logs(t *testing.T, log *bufio.Scanner, text string) {
	t.Helper()
	for log.Scan() {
		if strings.Contains(log.Text(), text) {
			return
		}
	}
	t.Fatalf("it ended and did not say %q: %v", text, p.Wait())
}

// A reload changes the log level.
func TestLogLevelReloads(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	write := func(level string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("apiVersion: "+config.APIVersion+"\nkind: "+config.Kind+"\nlogLevel: "+level+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("error")
	log, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() }) // after the end of the program
	program := start(t, reviewer(t).URL, stderr, "--config", path)
	stderr.Close()
	program.ready(t)
	write("info")
	if err := program.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	program.logs(t, bufio.NewScanner(log), "configuration reloaded") // which is information
}
