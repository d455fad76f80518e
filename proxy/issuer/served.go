package issuer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// served is the serving certificate in use, with the CA that issued it.
type served struct {
	names, addresses []string // by which clients connect
	log              *zap.Logger

	mu struct {
		sync.Mutex
		authority *authority
		serving   *pair
		listeners []dynamiccertificates.Listener
	}
}

// Name returns the name of the certificate in the logs of libraries.
func (s *served) Name() string { return "generated certificate" }

// CurrentCertKeyContent returns the serving certificate and its key as PEM.
func (s *served) CurrentCertKeyContent() (certificate, key []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.serving.certificate, s.mu.serving.key
}

func (s *served) AddListener(l dynamiccertificates.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.listeners = append(s.mu.listeners, l)
}

// serve makes a serving certificate if the CA has not issued the current one, or if the next one is
// due. If a is nil, serve uses the last known CA.
func (s *served) serve(a *authority) error {
	s.mu.Lock()
	known, serving := s.mu.authority, s.mu.serving
	s.mu.Unlock()
	if a == nil {
		a = known
	}
	if a == nil || known != nil && a.certificate.Equal(known.certificate) &&
		!serving.isDue(time.Now()) {
		return nil
	}
	serving, err := a.issue(s.names, s.addresses)
	if err != nil {
		return fmt.Errorf("make a serving certificate: %w", err)
	}
	s.mu.Lock()
	s.mu.authority, s.mu.serving = a, serving
	listeners := slices.Clone(s.mu.listeners)
	s.mu.Unlock()
	s.log.Info("new serving certificate", zap.String("ca", a.certificate.Subject.CommonName),
		zap.Time("caExpires", a.certificate.NotAfter),
		zap.Strings("dnsNames", s.names), zap.Time("nextRenewal", serving.renew))
	for _, l := range listeners {
		l.Enqueue()
	}
	return nil
}

// soon is the longest time until the next attempt after a failure.
const soon = time.Minute

// repeat calls refresh until ctx ends, and logs the first failure and the recovery. An interval is
// between least and half as much again, and soon at most after a failure.
func (s *served) repeat(
	ctx context.Context, refresh func(context.Context) error, least time.Duration,
	fails, works string,
) {
	const jitter = 0.5
	for failing := false; ; {
		pause := wait.Jitter(least, jitter)
		if failing {
			pause = min(pause, soon)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		attempt, cancel := context.WithTimeout(ctx, limit)
		err := refresh(attempt)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			s.log.Error(fails, zap.Error(err))
		case err == nil && failing:
			s.log.Info(works)
		}
		failing = err != nil
	}
}
