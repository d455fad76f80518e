package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// backupSuffix makes the name of the copy that is taken of a kubeconfig before a cluster in it is redirected. It holds
// what no rewritten file has: comments, order, unknown fields. Further copies have a number behind it.
const backupSuffix = ".watchproxy-backup"

// kubefile is one file of a kubeconfig while it is changed. Paths in it stay as they are.
type kubefile struct {
	path    string // symbolic links resolved, so that they stay
	info    fs.FileInfo
	before  []byte
	config  *clientcmdapi.Config
	instead []byte       // written instead of config, if set
	first   func() error // done before a change is written
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
	if f.first != nil {
		if err := f.first(); err != nil {
			return false, err
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

// private is the mode of files with credentials.
const private = 0o600

// replaceFile writes a file that appears whole or not at all, with the owner that another one has, if there is another.
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
	if like != nil {
		err = errors.Join(err, keepOwner(f, like))
	}
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
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

// copies are those of the file that there are, in the order in which they were made, and next the name of the next one.
func (f *kubefile) copies() (names []string, contents [][]byte, next string, err error) {
	next = f.path + backupSuffix
	for {
		content, err := os.ReadFile(next)
		if errors.Is(err, fs.ErrNotExist) {
			return names, contents, next, nil
		}
		if err != nil {
			return nil, nil, "", fmt.Errorf("copy of kubeconfig: %w", err)
		}
		names, contents = append(names, next), append(contents, content)
		next = fmt.Sprintf("%s%s.%d", f.path, backupSuffix, len(names))
	}
}

// backUp keeps a copy of the file as it is before it is changed, unless there is one: of the same content, or, if
// a cluster was redirected already, of what it was before that. Copies of something else stay.
func (f *kubefile) backUp(redirected bool) (name string, others []string, err error) {
	names, contents, next, err := f.copies()
	if err != nil {
		return "", nil, err
	}
	for i, name := range names {
		if bytes.Equal(contents[i], f.before) || redirected && i == len(names)-1 {
			return name, slices.Delete(names, i, i+1), nil
		}
	}
	if err := replaceFile(next, f.before, private, f.info); err != nil {
		return "", nil, fmt.Errorf("copy of kubeconfig: %w", err)
	}
	return next, names, nil
}

// settle decides what becomes of a file whose cluster was reverted. If no other is redirected and a copy means the
// same, the copy takes its place, comments and all. Copies that differ stay.
func (f *kubefile) settle() (how string, err error) {
	if f.redirected() {
		return "", nil
	}
	names, contents, _, err := f.copies()
	if err != nil || len(names) == 0 {
		return "", err
	}
	// Compared as they would be written: what is empty and what is missing is the same there.
	now, err := clientcmd.Write(*f.config)
	if err != nil {
		return "", fmt.Errorf("kubeconfig %s: %w", f.path, err)
	}
	for i, name := range slices.Backward(names) {
		was, err := clientcmd.Load(contents[i])
		if err != nil {
			continue // a copy that cannot be read is no reason not to go back
		}
		if before, err := clientcmd.Write(*was); err == nil && bytes.Equal(before, now) {
			f.instead = contents[i]
			f.after = func() error { return os.Remove(name) }
			return "; the file is what it was", nil
		}
	}
	return "; the file differs from its copy, and " + strings.Join(names, ", ") + " stays", nil
}
