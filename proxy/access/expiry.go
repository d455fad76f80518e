package access

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// Expiries exports the expiry of certificates, also of renewed files before their first use.
type Expiries struct {
	Serving  *Certificates // nil for none
	Upstream []*rest.Config
}

var (
	servingExpiry = prometheus.NewDesc(
		"watchproxy_serving_certificate_expiration_timestamp_seconds",
		"Unix time at which the listener's certificate expires.", nil, nil)
	upstreamExpiry = prometheus.NewDesc(
		"watchproxy_upstream_client_certificate_expiration_timestamp_seconds",
		"Unix time at which the first of the proxy's client certificates for upstream expires, "+
			"by where they come from (kubeconfig, exec: a credential plugin).",
		[]string{"origin"}, nil)
)

// Describe implements prometheus.Collector.
func (e *Expiries) Describe(ch chan<- *prometheus.Desc) {
	ch <- servingExpiry
	ch <- upstreamExpiry
}

// Collect implements prometheus.Collector. A certificate that cannot be read has no sample.
func (e *Expiries) Collect(ch chan<- prometheus.Metric) {
	show := func(desc *prometheus.Desc, at time.Time, labels ...string) {
		ch <- prometheus.MustNewConstMetric(
			desc, prometheus.GaugeValue, float64(at.Unix()), labels...,
		)
	}
	if e.Serving != nil {
		cert, _ := e.Serving.pair.CurrentCertKeyContent()
		if at, err := expiry(cert); err == nil {
			show(servingExpiry, at)
		}
	}
	var first time.Time
	for _, rc := range e.Upstream {
		at, err := clientExpiry(rc.TLSClientConfig)
		if err == nil && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if !first.IsZero() {
		show(upstreamExpiry, first, "kubeconfig")
	}
	if at := execExpiry.Load(); at != nil {
		show(upstreamExpiry, *at, "exec")
	}
}

func clientExpiry(c rest.TLSClientConfig) (time.Time, error) {
	if len(c.CertData) > 0 {
		return expiry(c.CertData)
	}
	text, err := os.ReadFile(c.CertFile)
	if err != nil {
		return time.Time{}, err
	}
	return expiry(text)
}

// expiry returns the expiry of the first certificate in a PEM text, which is the leaf.
func expiry(text []byte) (time.Time, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return time.Time{}, errors.New("no certificate in PEM")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, fmt.Errorf("certificate: %w", err)
	}
	return leaf.NotAfter, nil
}

var execExpiry = func() *reported {
	r := &reported{}
	clientmetrics.Register(clientmetrics.RegisterOpts{ClientCertExpiry: r})
	return r
}()

type reported struct{ atomic.Pointer[time.Time] }

// Set implements metrics.ExpiryMetric. If there is no certificate, at is nil.
func (r *reported) Set(at *time.Time) { r.Store(at) }
