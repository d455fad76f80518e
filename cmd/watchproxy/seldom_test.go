package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/apimachinery/pkg/types"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/klog/v2"

	"github.com/watchproxy/watchproxy/proxy/access"
)

// While the audit log cannot be written, the log contains a line about it every ten seconds, without
// the contents of requests.
func TestLostEventsAreOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, lines := observer.New(zap.InfoLevel)
		klog.SetLogger(zapr.NewLogger(zap.New(core).WithOptions(zap.WrapCore(seldom))))
		t.Cleanup(klog.ClearLogger)
		for want := 1; want <= 3; want++ {
			for i := range 1000 {
				audit.HandlePluginError("log", errors.New("no space left on device"), &auditapi.Event{
					AuditID: types.UID(fmt.Sprint(i)), RequestURI: "/api/v1/namespaces/a/pods/p/exec?command=SECRET",
				})
			}
			if n := lines.Len(); n != want {
				t.Fatalf("%d lines, want %d", n, want)
			}
			if text := lines.All()[want-1].Message; !strings.Contains(text, "no space left on device") || strings.Contains(text, "SECRET") {
				t.Error(text)
			}
			time.Sleep(10 * time.Second)
		}
	})
}

// A library's line has at most 512 bytes of each text, which a client may have chosen. It has no
// value of another kind, such as a query.
func TestLibraryLinesAreShort(t *testing.T) {
	long, query := strings.Repeat("x", 20<<10), "?limit=x&apikey=SECRET&a="+strings.Repeat("%01", 20<<10)
	list := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/pods"+query, http.NoBody)
	for name, test := range map[string]struct {
		write func(log *zap.Logger)
		want  map[string]any
	}{
		"message": {func(*zap.Logger) { klog.Error(long) }, map[string]any{}},
		"texts": {
			func(*zap.Logger) { klog.ErrorS(errors.New(long), "Failed", "selector", long, "code", 503) },
			map[string]any{"error": long[:textMost], "selector": long[:textMost], "code": int64(503)},
		},
		"malformed list": {
			func(*zap.Logger) { _, _ = access.RequestInfos.NewRequestInfo(list) },
			map[string]any{"error": `strconv.ParseInt: parsing "x": invalid syntax`},
		},
		"stringer": {func(*zap.Logger) { klog.ErrorS(nil, "Failed", "url", list.URL) }, map[string]any{}},
		"with":     {func(log *zap.Logger) { log.With(zap.Any("query", list.URL.Query())).Warn("Failed") }, map[string]any{}},
		"connection": {
			func(log *zap.Logger) { _, _ = connectionErrors{log}.Write([]byte(long + "\n")) },
			map[string]any{"error": long[:textMost]},
		},
	} {
		t.Run(name, func(t *testing.T) {
			core, lines := observer.New(zap.InfoLevel)
			log := zap.New(core).WithOptions(zap.WrapCore(seldom))
			klog.SetLogger(zapr.NewLogger(log))
			t.Cleanup(klog.ClearLogger)
			test.write(log)
			if lines.Len() != 1 {
				t.Fatalf("%d lines", lines.Len())
			}
			line := lines.All()[0]
			if got := line.ContextMap(); !maps.Equal(got, test.want) {
				t.Errorf("%.200v, want %.200v", got, test.want)
			}
			if len(line.Message) > textMost {
				t.Errorf("a message has %d bytes", len(line.Message))
			}
		})
	}
}

// Libraries log warnings and errors, and nothing below the level of the proxy's own log, which may
// change.
func TestLevelOfLibraries(t *testing.T) {
	for level, want := range map[zapcore.Level]string{zap.InfoLevel: "warn error", zap.WarnLevel: "warn error", zap.ErrorLevel: "error"} {
		var failures bytes.Buffer
		now := zap.NewAtomicLevelAt(zap.ErrorLevel)
		core, lines := observer.New(now)
		log := libraryLog(zap.New(core, zap.ErrorOutput(zapcore.AddSync(&failures))))
		now.SetLevel(level)
		log.Info("information")
		log.Warn("a warning")
		log.Error("an error")
		var got []string
		for _, line := range lines.All() {
			got = append(got, line.Level.String())
		}
		if strings.Join(got, " ") != want || failures.Len() > 0 {
			t.Errorf("at %s: %q, %s", level, got, failures.String())
		}
	}
}
