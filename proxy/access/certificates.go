package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// The ConfigMap in which kube-apiserver publishes the CAs of client certificates.
const (
	caNamespace = "kube-system"
	caConfigMap = "extension-apiserver-authentication"
	caKey       = "client-ca-file"
)

// ClientCA holds the CAs of client certificates. Run reloads them when their source changes.
type ClientCA struct {
	content interface {
		dynamiccertificates.CAContentProvider
		dynamiccertificates.ControllerRunner
	}
}

// ClientCAFromFile reads the CAs from a PEM file.
func ClientCAFromFile(file string) (*ClientCA, error) {
	content, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", file)
	if err != nil {
		return nil, fmt.Errorf("client authorities: %w", err)
	}
	return &ClientCA{content}, nil
}

// ClientCAFromCluster uses the apiserver's own CAs. If it publishes none, or the proxy may not read
// them, it logs that client certificates are not accepted, and returns nil.
func ClientCAFromCluster(ctx context.Context, rc *rest.Config, log *zap.Logger) (*ClientCA, error) {
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", caConfigMap, err)
	}
	configMaps := client.CoreV1().ConfigMaps(caNamespace)
	published, err := configMaps.Get(ctx, caConfigMap, metav1.GetOptions{})
	reason := ""
	switch {
	case apierrors.IsForbidden(err):
		reason = "the proxy may not read them: bind its user to the role " +
			"extension-apiserver-authentication-reader in kube-system, or give a file"
	case apierrors.IsNotFound(err), err == nil && published.Data[caKey] == "":
		reason = "the apiserver publishes none: give a file"
	case err != nil:
		return nil, fmt.Errorf("read the client authorities from configmap %s/%s: %w",
			caNamespace, caConfigMap, err)
	}
	if reason != "" {
		log.Warn("client certificates are not accepted, as there are no client authorities: "+
			reason, zap.Error(err))
		return nil, nil
	}
	content, err := dynamiccertificates.NewDynamicCAFromConfigMapController(
		"client-ca", caNamespace, caConfigMap, caKey, client,
	)
	if err != nil {
		return nil, fmt.Errorf("client authorities: %w", err)
	}
	return &ClientCA{content}, nil
}

// Pair is a source of the listener's certificate and private key. Run reloads them after changes.
type Pair interface {
	dynamiccertificates.CertKeyContentProvider
	Run(ctx context.Context, workers int)
}

// PairFromFiles reads a certificate and its private key from PEM files.
func PairFromFiles(certFile, privateKeyFile string) (Pair, error) {
	pair, err := dynamiccertificates.NewDynamicServingContentFromFiles(
		"serving-cert", certFile, privateKeyFile,
	)
	if err != nil {
		return nil, fmt.Errorf("certFile %s, privateKeyFile %s: %w", certFile, privateKeyFile, err)
	}
	return pair, nil
}

// Certificates holds the listener's certificate. Run reloads it after changes.
type Certificates struct {
	pair       Pair
	controller *dynamiccertificates.DynamicServingCertificateController
}

// NewCertificates returns Certificates of a pair. A nil ca accepts no client certificates.
func NewCertificates(pair Pair, ca *ClientCA) (*Certificates, error) {
	c := &Certificates{pair: pair}
	base := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		// Dynamic sizing writes the first 128 KiB of a connection in a hundred system calls.
		DynamicRecordSizingDisabled: true,
	}
	var clients dynamiccertificates.CAContentProvider
	if ca != nil {
		// A client without a certificate may have a token. A client with an invalid certificate
		// receives an HTTP response instead of a TLS alert.
		base.ClientAuth = tls.RequestClientCert
		base.VerifyPeerCertificate = refuseLong
		clients = ca.content
	}
	c.controller = dynamiccertificates.NewDynamicServingCertificateController(
		base, clients, pair, nil, nil,
	)
	pair.AddListener(c.controller)
	if ca != nil {
		ca.content.AddListener(c.controller)
	}
	if err := c.controller.RunOnce(); err != nil {
		return nil, fmt.Errorf("%s: %w", pair.Name(), err)
	}
	return c, nil
}

// certificatesMax limits the certificates of a client, in bytes, because its connection keeps them.
// TLS itself allows 256 KiB, and real chains have up to 8 KiB.
const certificatesMax = 16 << 10

func refuseLong(certificates [][]byte, _ [][]*x509.Certificate) error {
	size := 0
	for _, c := range certificates {
		size += len(c)
	}
	if size > certificatesMax {
		return fmt.Errorf("the client's certificates have %d bytes, at most %d are accepted",
			size, certificatesMax)
	}
	return nil
}

// Config returns the TLS configuration of a listener.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: c.controller.GetConfigForClient,
	}
}

// Run reloads the certificate after changes, until ctx ends.
func (c *Certificates) Run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { c.pair.Run(ctx, 1) })
	all.Go(func() { c.controller.Run(1, ctx.Done()) })
	all.Wait()
}

// Run reloads changed CAs until ctx ends.
func (ca *ClientCA) Run(ctx context.Context) { ca.content.Run(ctx, 1) }

// Wait returns when the CAs have been read or ctx ends.
func (ca *ClientCA) Wait(ctx context.Context) error {
	const pause = 20 * time.Millisecond
	err := wait.PollUntilContextCancel(ctx, pause, true, func(context.Context) (bool, error) {
		_, ok := ca.content.VerifyOptions()
		return ok, nil
	})
	if err != nil {
		return fmt.Errorf("client authorities: %w", err)
	}
	return nil
}
