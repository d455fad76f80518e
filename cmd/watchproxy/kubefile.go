package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// backupSuffix makes the name of the copy that is taken of a kubeconfig before a cluster in it is redirected. It holds
// what no rewritten file has: comments, order, unknown fields.
const backupSuffix = ".watchproxy-backup"

// kubefile is one file of a kubeconfig while it is changed. Paths in it stay as they are.
type kubefile struct {
	path    string // symbolic links resolved, so that they stay
	info    fs.FileInfo
	before  []byte
	config  *clientcmdapi.Config
	instead []byte // written instead of config, if set
	after   func() error
}

// edit changes a file under the lock that kubectl config takes, and replaces it at once or not at all.
func edit(name string, change func(*kubefile) error) (changed bool, err error) {
	f := &kubefile{}
	if f.path, err = filepath.EvalSymlinks(name); err != nil {
		return false, fmt.Errorf("kubeconfig: %w", err)
	}
	unlock, err := lock(name)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if f.info, err = os.Stat(f.path); err != nil {
		return false, fmt.Errorf("kubeconfig: %w", err)
	}
	if f.before, err = os.ReadFile(f.path); err != nil {
		return false, fmt.Errorf("kubeconfig: %w", err)
	}
	if f.config, err = clientcmd.Load(f.before); err != nil {
		return false, fmt.Errorf("kubeconfig %s: %w", name, err)
	}
	unchanged := f.config.DeepCopy()
	if err := change(f); err != nil {
		return false, err
	}
	if f.instead == nil && reflect.DeepEqual(unchanged, f.config) {
		return false, nil
	}
	out := f.instead
	if out == nil {
		if out, err = clientcmd.Write(*f.config); err != nil {
			return false, fmt.Errorf("kubeconfig %s: %w", name, err)
		}
	}
	if err := replaceFile(f.path, out, f.info.Mode().Perm(), f.info); err != nil {
		return false, fmt.Errorf("kubeconfig: %w", err)
	}
	if f.after != nil {
		err = f.after()
	}
	return true, err
}

// lock keeps kubectl config and others that use client-go from changing the file meanwhile.
func lock(path string) (unlock func() error, err error) {
	name := path + ".lock"
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL, 0)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("kubeconfig: %s exists: another process changes %s; remove it if there is none", name, path)
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return func() error { return os.Remove(name) }, f.Close()
}

// replaceFile writes a file that appears whole or not at all, with the owner that another one has.
func replaceFile(path string, content []byte, mode fs.FileMode, like fs.FileInfo) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // it may be gone
		}
	}()
	_, err = f.Write(content)
	err = errors.Join(err, keepOwner(f, like), f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func (f *kubefile) cluster(name string) (*clientcmdapi.Cluster, error) {
	if c, ok := f.config.Clusters[name]; ok {
		return c, nil
	}
	return nil, fmt.Errorf("kubeconfig %s: cluster %q is gone", f.path, name)
}

// redirected tells whether some cluster in the file leads to a proxy.
func (f *kubefile) redirected() bool { return len(redirectedClusters(f.config)) > 0 }

// backUp keeps a copy of the file as it was. One that is there already is of a file that has been changed back.
func (f *kubefile) backUp() error {
	const private = 0o600
	if err := replaceFile(f.path+backupSuffix, f.before, private, f.info); err != nil {
		return fmt.Errorf("copy of kubeconfig: %w", err)
	}
	return nil
}

// settle decides what becomes of a file whose cluster was reverted. If no other is redirected and the copy means the
// same, the copy takes its place, comments and all. If they differ, the copy stays.
func (f *kubefile) settle() (how string, err error) {
	if f.redirected() {
		return "", nil
	}
	backup := f.path + backupSuffix
	content, err := os.ReadFile(backup)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("copy of kubeconfig: %w", err)
	}
	kept := "; the file was changed otherwise since, and " + backup + " stays"
	was, err := clientcmd.Load(content)
	if err != nil {
		return kept, nil //nolint:nilerr // a copy that cannot be read is no reason not to go back
	}
	// Compared as they would be written: what is empty and what is missing is the same there.
	a, errA := clientcmd.Write(*was)
	b, errB := clientcmd.Write(*f.config)
	if err := errors.Join(errA, errB); err != nil {
		return "", fmt.Errorf("kubeconfig %s: %w", f.path, err)
	}
	if !bytes.Equal(a, b) {
		return kept, nil
	}
	f.instead = content
	f.after = func() error { return os.Remove(backup) }
	return "; the file is what it was", nil
}
