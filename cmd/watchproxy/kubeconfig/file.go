package kubeconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// backupSuffix is the suffix of the copy that is made of a file before a redirection. The copy
// keeps comments, order and unknown fields, which clientcmd drops. Further copies have a number
// after the suffix.
const backupSuffix = ".watchproxy-backup"

// kubefile is one file of a kubeconfig. Relative paths in it stay relative.
type kubefile struct {
	path   string // symbolic links are resolved, so that replacing the file keeps the links
	info   fs.FileInfo
	before []byte
	config *clientcmdapi.Config
}

// edit changes a cluster in a file under client-go's lock of the file. change must write the file.
func edit(name, cluster string, change func(*kubefile, *clientcmdapi.Cluster) error) (err error) {
	path, err := filepath.EvalSymlinks(name)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	unlock, err := lock(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	f, err := read(path)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", name, err)
	}
	c, ok := f.config.Clusters[cluster]
	if !ok {
		return fmt.Errorf("kubeconfig %s: cluster %q is gone", name, cluster)
	}
	return change(f, c)
}

func read(path string) (f *kubefile, err error) {
	f = &kubefile{path: path}
	if f.info, err = os.Stat(path); err != nil {
		return nil, err
	}
	if f.before, err = os.ReadFile(path); err != nil {
		return nil, err
	}
	f.config, err = clientcmd.Load(f.before)
	return f, err
}

// lock prevents changes of the file by kubectl config and other users of client-go. It creates the
// same lock file as clientcmd, whose own function is not exported.
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

func (f *kubefile) save() error {
	content, err := clientcmd.Write(*f.config)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", f.path, err)
	}
	return f.replace(content)
}

func (f *kubefile) replace(content []byte) error {
	if err := replaceFile(f.path, content, f.info.Mode().Perm(), f.info); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	return nil
}

// redirected reports whether any cluster in the file is redirected to a proxy.
func (f *kubefile) redirected() bool { return len(redirected(f.config)) > 0 }

// copies returns the copies of the file, oldest first, and the name for the next copy.
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

// backUp copies the file before a change. It makes no copy if a copy with the same content exists.
// It also makes no copy if a cluster is already redirected, because the latest copy is from before
// that redirection. It never deletes a copy.
func (f *kubefile) backUp(repeated bool) (name string, others []string, err error) {
	names, contents, next, err := f.copies()
	if err != nil {
		return "", nil, err
	}
	for i, name := range names {
		if bytes.Equal(contents[i], f.before) || repeated && i == len(names)-1 {
			return name, slices.Delete(names, i, i+1), nil
		}
	}
	if err := replaceFile(next, f.before, private, f.info); err != nil {
		return "", nil, fmt.Errorf("copy of kubeconfig: %w", err)
	}
	return next, names, nil
}

// restore writes a file after a cluster was reverted. If no other cluster is redirected and a copy
// has the same configuration, restore replaces the file with that copy, which includes the
// comments. Other copies stay.
func (f *kubefile) restore() (how string, err error) {
	now, err := clientcmd.Write(*f.config)
	if err != nil {
		return "", fmt.Errorf("kubeconfig %s: %w", f.path, err)
	}
	if f.redirected() {
		return "", f.replace(now)
	}
	names, contents, _, err := f.copies()
	if err != nil {
		return "", err
	}
	for i, name := range slices.Backward(names) {
		was, err := clientcmd.Load(contents[i])
		if err != nil {
			continue // an unreadable copy does not prevent --undo
		}
		// Compare the encodings by clientcmd, in which empty and missing fields are equal.
		if before, err := clientcmd.Write(*was); err == nil && bytes.Equal(before, now) {
			if err := f.replace(contents[i]); err != nil {
				return "", err
			}
			return "; the file is what it was", os.Remove(name)
		}
	}
	if len(names) > 0 {
		how = "; the file differs from its copy, and " + strings.Join(names, ", ") + " stays"
	}
	return how, f.replace(now)
}

// writeTo implements --to. It does not replace a file from which the kubeconfig was read, because
// that file may contain more.
func writeTo(name string, content []byte, sources []string) error {
	there, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return replaceFile(name, content, private, nil)
	case err != nil:
		return err
	case !there.Mode().IsRegular():
		return errors.New("is no file")
	}
	for _, source := range sources {
		if info, err := os.Stat(source); err == nil && os.SameFile(info, there) {
			return errors.New("the kubeconfig was read from there; change that by --in-place, or name another file")
		}
	}
	if name, err = filepath.EvalSymlinks(name); err != nil {
		return err
	}
	return replaceFile(name, content, private, nil)
}

// private is the mode of files with credentials.
const private = 0o600

// replaceFile writes a file atomically. If like is not nil, the file gets the owner of like.
func replaceFile(path string, content []byte, mode fs.FileMode, like fs.FileInfo) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // it may not exist any more
		}
	}()
	_, err = f.Write(content)
	if like != nil {
		err = errors.Join(err, chown(f, like))
	}
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
