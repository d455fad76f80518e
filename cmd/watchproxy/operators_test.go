package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// Clients that occupy all connections of the admin address, and send nothing, do not block probes.
func TestProbesBesideSilentConnections(t *testing.T) {
	t.Parallel()
	_, admin := start(t, reviewer(t).URL, os.Stderr).ready(t)
	address := strings.TrimPrefix(admin, "http://")
	var d net.Dialer
	// Until then, no idle connection ends by itself.
	ctx, cancel := context.WithTimeout(t.Context(), adminIdle)
	defer cancel()
	const many = 64 // more than the connections of the address
	for n := range many {
		c, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if n%2 == 0 {
			continue
		}
		if _, err := fmt.Fprintf(c, "GET /livez HTTP/1.1\r\nHost: %s\r\n\r\n", address); err != nil { // the connection is idle after this
			t.Fatal(err)
		}
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	deadline, _ := ctx.Deadline()
	for range 3 {
		probe := &http.Client{Transport: transport, Timeout: time.Until(deadline)}
		if code, text := ask(t, probe, http.MethodGet, admin+"/livez", ""); code != http.StatusOK {
			t.Errorf("%d %s", code, text)
		}
	}
}

// Every line of the log is JSON. Clients that fail to use TLS on the admin address cannot fill the
// log.
func TestFailedHandshakes(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	program, port, _ := startTLS(t, &log)
	const failures = 20
	for range failures {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "\x16\x03\x01\x00\x05hello"); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, c) // until the proxy closes it
		c.Close()
	}
	program.end(t)
	said := log.String()
	for line := range strings.Lines(said) {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %s", line)
		}
	}
	if n := strings.Count(said, "TLS handshake error"); n == 0 || n == failures {
		t.Errorf("%d of %d failed handshakes are logged", n, failures)
	}
}
