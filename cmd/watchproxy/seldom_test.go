package main

import (
	"bytes"
	"errors"
	"fmt"
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

// A library's line has at most 512 bytes of each text, which a client may have chosen.
func TestLibraryLinesAreShort(t *testing.T) {
	core, lines := observer.New(zap.InfoLevel)
	klog.SetLogger(zapr.NewLogger(zap.New(core).WithOptions(zap.WrapCore(seldom))))
	t.Cleanup(klog.ClearLogger)
	long := strings.Repeat("x", 20<<10)
	klog.ErrorS(errors.New(long), "Couldn't parse request", "selector", long)
	klog.Error(long)
	if lines.Len() != 2 {
		t.Fatalf("%d lines", lines.Len())
	}
	for _, line := range lines.All() {
		for name, text := range line.ContextMap() {
			if text, ok := text.(string); ok && len(text) > textMost {
				t.Errorf("%s has %d bytes", name, len(text))
			}
		}
		if len(line.Message) > textMost {
			t.Errorf("a message has %d bytes", len(line.Message))
		}
	}
	if got := lines.All()[0].ContextMap(); got["selector"] != long[:textMost] || got["error"] != long[:textMost] {
		t.Errorf("%v", got)
	}
}

// Libraries log warnings and errors, and nothing below the level of the proxy's own log, which may
// change.
func TestLevelOfLibraries(t *testing.T) {
	for level, want := range map[zapcore.Level]string{zap.InfoLevel: "warn error", zap.WarnLevel: "warn error", zap.ErrorLevel: "error"} {
		var failures bytes.Buffer
		now := zap.NewAtomicLevelAt(zap.ErrorLevel)
		core, lines := observer.New(now)
		log := ofLibraries(zap.New(core, zap.ErrorOutput(zapcore.AddSync(&failures))))
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
