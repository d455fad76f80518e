package main

import (
	"bytes"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/issuer"
)

const (
	// tokenAge is the interval between two reads of a token's file while clients send tokens.
	tokenAge = time.Second
	// tokenOverlap is how long a replaced token still counts as the proxy's own. Clients read the
	// file once a minute, and the kubelet replaces a token some two minutes before it expires.
	tokenOverlap = 90 * time.Second
)

type tokenFile struct {
	path string
	mu   struct {
		sync.Mutex
		read            time.Time
		current, before []byte
		replaced        time.Time // when before was last seen in the file
	}
}

// is reports whether a token is the file's, or was until recently.
func (f *tokenFile) is(token string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if now.Sub(f.mu.read) > tokenAge {
		f.readLocked(now)
	}
	return sameToken(f.mu.current, token) ||
		now.Sub(f.mu.replaced) < tokenOverlap && sameToken(f.mu.before, token)
}

// readLocked reads the file. If it cannot be read, the last known token counts.
func (f *tokenFile) readLocked(now time.Time) {
	m := &f.mu
	if content, err := os.ReadFile(f.path); err == nil {
		if content = bytes.TrimSpace(content); !bytes.Equal(content, m.current) {
			m.before, m.current, m.replaced = m.current, content, m.read
		}
	}
	m.read = now
}

func sameToken(own []byte, token string) bool {
	return len(own) > 0 && subtle.ConstantTimeCompare(own, []byte(token)) == 1
}

// ownToken returns what recognizes the proxy's bearer token, or nil without one or with several.
func (a *apiserver) ownToken() func(token string) bool {
	rc := a.configs[0]
	several := slices.ContainsFunc(a.configs, func(other *rest.Config) bool {
		return other.BearerTokenFile != rc.BearerTokenFile || other.BearerToken != rc.BearerToken
	})
	switch {
	case several, rc.Impersonate.UserName != "":
		return nil
	case rc.BearerTokenFile != "":
		return (&tokenFile{path: rc.BearerTokenFile}).is
	case rc.BearerToken != "":
		return func(token string) bool { return sameToken([]byte(rc.BearerToken), token) }
	}
	return nil
}

// kubernetesNames are the names of the apiserver in a pod.
var kubernetesNames = []string{
	"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
}

const (
	publishedDirectory = "/run/watchproxy/serviceaccount" // other containers mount it, read only
	authorityDirectory = "/run/watchproxy/authority"      // of the proxy's container alone
)

// sidecar returns the certificate for clients in the pod, and publishes what they read.
func (a *apiserver) sidecar(listen string, log *zap.Logger) (access.Pair, error) {
	token := a.configs[0].BearerTokenFile
	if token == "" || a.ownToken() == nil {
		return nil, errors.New("sidecar: the proxy must run as the pod's service account: leave " +
			"out upstream.kubeconfig and upstream.contexts, and mount the account's token " +
			"(automountServiceAccountToken)")
	}
	addresses := []string{"127.0.0.1", "::1"}
	host, _, err := net.SplitHostPort(listen)
	if err == nil && net.ParseIP(host) != nil && !slices.Contains(addresses, host) {
		addresses = append(addresses, host)
	}
	pod, err := issuer.NewPod(issuer.PodOptions{
		Account: filepath.Dir(token), Directory: publishedDirectory, Authority: authorityDirectory,
		DNSNames: kubernetesNames, IPAddresses: addresses,
	}, log)
	if err != nil {
		return nil, fmt.Errorf("sidecar: %w", err)
	}
	return pod, nil
}
