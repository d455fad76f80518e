package proxy

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"
)

// A client over HTTP/1.1 may decode each chunk of a forwarded watch by itself, as upstream's own: each
// ends with an event, or at least with a character, however upstream's bytes arrive.
func TestChunksOfForwardedWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := []string{"{}\n", strings.Repeat("ü界😀", 100) + "\n", strings.Repeat("ü界😀", 10_000) + "\n", "{}\n"}
		_, l := serveTo(t, forwardsAll{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for _, event := range events {
				for piece := range strings.SplitSeq(event, "\x9f") { // within 😀
					if !strings.HasSuffix(piece, "\n") {
						piece += "\x9f"
					}
					_, _ = io.WriteString(w, piece)
					_ = http.NewResponseController(w).Flush()
				}
			}
		}, testOptions())
		c := dialSlow(t, l, "tls")
		send(t, c, "GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		all, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := bytes.Cut(all, []byte("\r\n\r\n"))
		r, got := bufio.NewReader(bytes.NewReader(body)), ""
		for {
			head, err := r.ReadString('\n')
			size, bad := strconv.ParseInt(strings.TrimSpace(head), 16, 64)
			if err != nil || bad != nil {
				t.Fatal(head, err, bad)
			}
			if size == 0 {
				break
			}
			chunk := make([]byte, size)
			if _, err := io.ReadFull(r, chunk); err != nil {
				t.Fatal(err)
			}
			if !utf8.Valid(chunk) || size < 16<<10 && chunk[size-1] != '\n' && !strings.Contains(got, strings.Repeat("ü界😀", 1000)) {
				t.Errorf("a chunk of %d bytes ends with %q", size, chunk[max(0, size-10):])
			}
			got += string(chunk)
			_, _ = r.Discard(len("\r\n"))
		}
		if got != strings.Join(events, "") {
			t.Errorf("got %d bytes", len(got))
		}
	})
}
