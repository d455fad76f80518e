//go:build verify

package audit

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/watchcache/cachetest"
)

// In mode batch, waiting events use a limited amount of memory, even if no event can be written.
func TestMemoryOfQueue(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := auditorOf(t, everything, func(o *Options) { o.LogPath, o.MaxSize, o.Mode = pipe, 0, Batch })
	before := cachetest.Heap()
	req := requestOf("/api/v1/pods?labelSelector=" + strings.Repeat("x", 20<<10))
	req.Header.Set("X-Forwarded-For", strings.Repeat("::,", 20<<10))
	for range 80 { // twice as many events; some 110 have room
		req.Target = strings.Clone(req.Target)
		a.Answered(req, exchange.NewResponse(429, exchange.FromProxy), time.Now(), false)
	}
	const most = 100 << 20
	if held := cachetest.Heap() - before; held > most {
		t.Errorf("queued events hold %d MiB", held>>20)
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, reader)
	}()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	a.file = standardOutput{} // for the second Close
	_ = reader.Close()
	<-drained
}
