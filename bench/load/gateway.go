package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
)

// newGatewayCommand returns a program that only forwards requests. It uses the standard library's
// ReverseProxy and, like the proxy, HTTP/2. It shows the latency that a minimal Go program adds.
func newGatewayCommand() *cobra.Command {
	var upstream, ca string
	cmd := &cobra.Command{Use: "gateway", Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		return serveGateway(upstream, ca)
	}}
	cmd.Flags().StringVar(&upstream, "upstream", "", "")
	cmd.Flags().StringVar(&ca, "ca", "", "")
	return cmd
}

func serveGateway(upstream, ca string) error {
	target, err := url.Parse(upstream)
	if err != nil {
		return err
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	l, err := listen(os.Stdout, true)
	if err != nil {
		return err
	}
	s := &http.Server{
		Handler: &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
			Transport: &http.Transport{
				TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true, DisableCompression: true,
			},
		},
		ReadHeaderTimeout: time.Minute,
	}
	return s.Serve(l)
}

func (b *bench) startGateway() (*child, error) {
	ca := filepath.Join(b.dir, "ca.crt")
	if err := os.WriteFile(ca, b.api.CA, 0o600); err != nil {
		return nil, fmt.Errorf("the gateway's authority: %w", err)
	}
	return startChild(b.api.Token, true, "gateway", "--upstream="+b.api.URL, "--ca="+ca)
}
