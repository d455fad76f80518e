package admin

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	logLevelPath = "/debug/log-level"
	// logLevelMax limits the body of a change, in bytes.
	logLevelMax = 64
)

var logLevels = []zapcore.Level{zapcore.DebugLevel, zapcore.InfoLevel, zapcore.WarnLevel, zapcore.ErrorLevel}

// serveLogLevel shows the log level. A PUT changes the level to the text in its body. zap's own
// handler would also accept levels that silence errors.
func serveLogLevel(mux *http.ServeMux, level zap.AtomicLevel, log *zap.Logger) {
	mux.HandleFunc("GET "+logLevelPath, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, level)
	})
	mux.HandleFunc("PUT "+logLevelPath, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, logLevelMax))
		if tooLarge := (*http.MaxBytesError)(nil); err != nil && !errors.As(err, &tooLarge) {
			return // the client has left
		}
		text := strings.TrimSpace(string(body))
		at := slices.IndexFunc(logLevels, func(l zapcore.Level) bool { return l.String() == text })
		if err != nil || at < 0 {
			http.Error(w, fmt.Sprintf("%.*q is no log level: send debug, info, warn or error as the body", logLevelMax, text), http.StatusBadRequest)
			return
		}
		before := level.Level()
		level.SetLevel(min(before, logLevels[at])) // the lower of the two levels logs the change
		log.Warn("log level changed until the next restart or reload of the configuration", zap.Stringer("from", before), zap.String("to", text))
		level.SetLevel(logLevels[at])
		fmt.Fprintln(w, text)
	})
}
