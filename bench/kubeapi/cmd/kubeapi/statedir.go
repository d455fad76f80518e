package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// stateDir is the directory for everything that survives the process. A process locks it. Otherwise
// etcd would wait forever for the lock that another process has on its database.
type stateDir struct {
	path string // absolute
	lock *os.File
}

func openStateDir(path string) (*stateDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("cannot use --dir: %w", err)
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make --dir: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot write to --dir: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("--dir %s is in use by another kubeapi", path)
		}
		return nil, fmt.Errorf("cannot lock --dir %s: %w", path, err)
	}
	return &stateDir{path: path, lock: lock}, nil
}

// close unlocks the directory for other processes. If a process is killed, the kernel does the
// same.
func (d *stateDir) close() { d.lock.Close() }

func (d *stateDir) file(name string) string { return filepath.Join(d.path, name) }

// read returns the named file's content, or nil if the file does not exist.
func (d *stateDir) read(name string) ([]byte, error) {
	b, err := os.ReadFile(d.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// write replaces the named file atomically, so that a start after a SIGKILL never reads a partial
// file.
func (d *stateDir) write(name string, content []byte, mode fs.FileMode) error {
	tmp, err := os.CreateTemp(d.path, name+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails after the rename, as it should
	_, err = tmp.Write(content)
	if err = errors.Join(err, tmp.Chmod(mode), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), d.file(name))
}
