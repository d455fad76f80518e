package issuer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
)

const (
	// publishInterval is the least time between two reads of the service account's files. The
	// kubelet replaces a token when a fifth of its validity is left, which is two minutes or more.
	publishInterval = 5 * time.Second
	// authorityFile has the CA's certificate and its private key.
	authorityFile = "authority.pem"
	// unfinished is the prefix of the names of files that are being written.
	unfinished = ".unfinished."
	// Clients in other containers may have other users.
	publicFile, publicDirectory   = 0o644, 0o755
	privateFile, privateDirectory = 0o600, 0o700
)

// accountFiles are the files of a service account. All are published, with the proxy's CA added.
var accountFiles = []string{
	corev1.ServiceAccountTokenKey, corev1.ServiceAccountNamespaceKey,
	corev1.ServiceAccountRootCAKey,
}

// PodOptions are the directories for clients in the proxy's own pod.
type PodOptions struct {
	// Account has the files of the pod's service account, as the kubelet mounts them.
	Account string
	// Directory is where the same files are published. To ca.crt, the CA of the proxy is added.
	Directory string
	// Authority is where the CA and its key are kept when the container restarts. Clients that have
	// read ca.crt before still accept the proxy then.
	Authority string
	// DNSNames and IPAddresses are the names by which clients connect to the proxy.
	DNSNames, IPAddresses []string
}

// Pod makes the certificate for clients in the proxy's own pod, and publishes the files they read.
type Pod struct {
	served
	authority *authority
	options   PodOptions
}

// NewPod reads or makes the CA, makes the first serving certificate and publishes the files.
func NewPod(o PodOptions, log *zap.Logger) (*Pod, error) {
	for _, dir := range []string{o.Authority, o.Directory} { // of a container that was killed
		left, _ := filepath.Glob(filepath.Join(dir, unfinished+"*"))
		for _, file := range left {
			_ = os.Remove(file)
		}
	}
	a, err := readAuthority(filepath.Join(o.Authority, authorityFile))
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	p := &Pod{served{names: o.DNSNames, addresses: o.IPAddresses, log: log}, a, o}
	return p, p.refresh()
}

func (p *Pod) refresh() error { return errors.Join(p.serve(p.authority), p.publish()) }

// readAuthority returns the CA in a file. If there is no file, it writes a new CA.
func readAuthority(path string) (*authority, error) {
	content, err := os.ReadFile(path)
	if err == nil && len(content) > 0 {
		a, err := parseAuthority(content, content)
		if err != nil {
			return nil, fmt.Errorf("%s is no CA (%w): delete the pod, or the file, "+
				"and the proxy makes a new one", path, err)
		}
		return a, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	a, err := newAuthority()
	if err != nil {
		return nil, err
	}
	certificate, key, err := a.encode()
	if err != nil {
		return nil, err
	}
	return a, replace(path, append(certificate, key...), privateFile, privateDirectory)
}

func (p *Pod) publish() error {
	for _, name := range accountFiles {
		content, err := os.ReadFile(filepath.Join(p.options.Account, name))
		if err != nil {
			return fmt.Errorf("directory: service account of the pod: %w", err)
		}
		if name == corev1.ServiceAccountRootCAKey { // some clients read only the first certificate
			content = append(encodePEM(p.authority.certificate.Raw), content...)
		}
		path := filepath.Join(p.options.Directory, name)
		if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, content) {
			continue
		}
		if err := replace(path, content, publicFile, publicDirectory); err != nil {
			return fmt.Errorf("directory: %w: mount a volume there that the proxy can write", err)
		}
	}
	return nil
}

// replace writes a file, whose readers see either the old content or all of the new.
func replace(path string, content []byte, mode, directory fs.FileMode) (err error) {
	dir, name := filepath.Split(path)
	if err := os.MkdirAll(dir, directory); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, unfinished+name+".")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Run publishes new tokens and renews the certificate until ctx ends.
func (p *Pod) Run(ctx context.Context, _ int) {
	p.repeat(ctx, func(context.Context) error { return p.refresh() }, publishInterval,
		"cannot publish the files for the pod's other containers; their tokens will expire",
		"the files for the pod's other containers are published again")
}
