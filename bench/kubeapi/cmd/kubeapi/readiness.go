package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	readinessPause = 50 * time.Millisecond
	readinessLimit = 10 * time.Minute // with a crowd of clients
)

// waitReady returns nil when the server at url is ready and pods can be created. /readyz is not
// enough, because it does not show whether the namespace "default" exists yet.
func waitReady(ctx context.Context, url string, creds credentials) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(creds.caPEM)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}

	ctx, cancel := context.WithTimeoutCause(ctx, readinessLimit, fmt.Errorf("the apiserver is not ready after %v", readinessLimit))
	defer cancel()
	tick := time.NewTicker(readinessPause)
	defer tick.Stop()
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default"} {
		for {
			err := getOK(ctx, client, url+path, creds.token)
			if err == nil {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("%w: %w", context.Cause(ctx), err)
			}
		}
	}
	return nil
}

func getOK(ctx context.Context, client *http.Client, url, token string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", url, resp.Status, body)
	}
	return err
}
