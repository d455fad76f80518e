package audit

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A log whose directory the user may not write could not be rotated. So it must not be limited.
func TestDirectoryOfTheLog(t *testing.T) {
	dir := t.TempDir()
	writable, closed := filepath.Join(dir, "writable"), filepath.Join(dir, "closed")
	for sub, mode := range map[string]os.FileMode{writable: 0o777, closed: 0o555} {
		log := filepath.Join(sub, "audit.log")
		if err := errors.Join(os.Mkdir(sub, 0o777), os.WriteFile(log, nil, 0o666), os.Chmod(log, 0o666), os.Chmod(sub, mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(closed, 0o755) })
	for o, refused := range map[Options]bool{
		{LogPath: filepath.Join(writable, "audit.log"), MaxSize: 1}: false,
		{LogPath: filepath.Join(closed, "audit.log"), MaxSize: 1}:   true,
		{LogPath: filepath.Join(closed, "audit.log")}:               false,
		{LogPath: "/dev/null", MaxSize: 1}:                          false,
	} {
		var file io.WriteCloser
		var err error
		asUser(t, func() { file, err = open(o) })
		if err == nil {
			err = file.Close()
		} else if refused && strings.Contains(err.Error(), closed+"/audit.log cannot be rotated; let the user write its directory") {
			continue
		}
		if err != nil || refused {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// asUser runs a function as a user that is not root, because root may write everything.
func asUser(t *testing.T, do func()) {
	t.Helper()
	if os.Getuid() != 0 {
		do()
		return
	}
	const nobody = 65534
	var running sync.WaitGroup
	running.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); err != 0 {
			t.Errorf("cannot become another user: %v", err)
			return
		}
		do()
	})
	running.Wait()
}
