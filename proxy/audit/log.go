package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"gopkg.in/natefinch/lumberjack.v2"
)

// Options are the settings of an [Auditor]. They have the meanings of the apiserver's flags.
type Options struct {
	PolicyFile string
	LogPath    string // "-" is standard output
	Strict     bool   // a request fails without its events
	// MaxAge is how many days rotated files are kept, and MaxBackups how many of them; 0 means no
	// limit. MaxSize is the size in MiB at which the file is rotated; 0 means never.
	MaxAge, MaxBackups, MaxSize int
	Unauthenticated             bool // the proxy does not authenticate clients
}

// open opens the log's file. Rotated files have the same names as the apiserver's.
func open(o Options) (io.WriteCloser, error) {
	if o.LogPath == "-" {
		return standardOutput{os.Stdout}, nil
	}
	const ownerOnlyDirectory, ownerOnly = 0o700, 0o600
	if err := os.MkdirAll(filepath.Dir(o.LogPath), ownerOnlyDirectory); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(o.LogPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, ownerOnly)
	if err != nil || o.MaxSize == 0 {
		return file, err
	}
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
		// A full file is renamed, and a new one is created.
		if err := unix.Access(filepath.Dir(o.LogPath), unix.W_OK|unix.X_OK); err != nil {
			return nil, errors.Join(fmt.Errorf("%s cannot be rotated; let the user write its "+
				"directory, or set logMaxSize to 0: %w", o.LogPath, err), file.Close())
		}
	}
	return &lumberjack.Logger{
		Filename: o.LogPath, MaxAge: o.MaxAge, MaxBackups: o.MaxBackups, MaxSize: o.MaxSize,
	}, file.Close()
}

// standardOutput is never closed, because it belongs to the process.
type standardOutput struct{ io.Writer }

func (standardOutput) Close() error { return nil }
