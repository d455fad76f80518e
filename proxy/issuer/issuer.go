package issuer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
)

const (
	certificateKey = corev1.TLSCertKey              // of the Secret: the CA's certificate
	privateKey     = corev1.TLSPrivateKeyKey        // of the Secret: the CA's private key
	publishedKey   = corev1.ServiceAccountRootCAKey // of the ConfigMap: the CA's certificate
)

const (
	// interval is the least time between two checks of the Secret and the ConfigMap by a replica.
	interval = 10 * time.Minute
	// limit is the maximum time of a check.
	limit = 30 * time.Second
)

// Options name the objects with the CA, and the proxy as clients call it (DNSNames, IPAddresses).
type Options struct {
	Namespace, SecretName, ConfigMapName string
	DNSNames, IPAddresses                []string
}

// Issuer makes the proxy's serving certificate. See the package's documentation.
type Issuer struct {
	served
	secrets    typed.SecretInterface
	configMaps typed.ConfigMapInterface
	options    Options
}

// New reads or makes the CA, publishes it and makes the first serving certificate.
func New(ctx context.Context, config *rest.Config, o Options, log *zap.Logger) (*Issuer, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for generated certificates: %w", err)
	}
	return start(ctx, client.CoreV1(), o, log)
}

func start(
	ctx context.Context, c typed.CoreV1Interface, o Options, log *zap.Logger,
) (*Issuer, error) {
	i := &Issuer{secrets: c.Secrets(o.Namespace), configMaps: c.ConfigMaps(o.Namespace), options: o}
	i.names, i.addresses, i.log = o.DNSNames, o.IPAddresses, log
	if err := i.refresh(ctx); err != nil {
		return nil, fmt.Errorf("generated certificate, namespace %s: %w", o.Namespace, err)
	}
	return i, nil
}

// Run renews certificates until ctx ends.
func (i *Issuer) Run(ctx context.Context, _ int) {
	i.repeat(ctx, i.refresh, interval,
		"cannot check the CA of the generated certificate; the last known CA stays in use",
		"the CA of the generated certificate is checked again")
}

// refresh reads the CA from the Secret and publishes it. If that fails, the last known CA serves.
func (i *Issuer) refresh(ctx context.Context) error {
	a, err := i.shared(ctx)
	if err == nil {
		err = i.publish(ctx, a)
	}
	return errors.Join(err, i.serve(a))
}

// shared returns the CA in the Secret. If the Secret is empty, shared first writes a CA there.
func (i *Issuer) shared(ctx context.Context) (a *authority, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		a = nil
		secret, err := i.secrets.Get(ctx, i.options.SecretName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(secret.Data[certificateKey]) > 0 || len(secret.Data[privateKey]) > 0 {
			a, err = parseAuthority(secret.Data[certificateKey], secret.Data[privateKey])
			if err != nil {
				return fmt.Errorf("%s and %s are no CA (%w): remove both, and the proxy makes a "+
					"new one", certificateKey, privateKey, err)
			}
			return nil
		}
		if a, err = newAuthority(); err != nil {
			return err
		}
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		if secret.Data[certificateKey], secret.Data[privateKey], err = a.encode(); err != nil {
			return err
		}
		_, err = i.secrets.Update(ctx, secret, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return nil, explain("secret", i.options.SecretName, err)
	}
	return a, nil
}

func (i *Issuer) publish(ctx context.Context, a *authority) error {
	text := encodePEM(a.certificate.Raw)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		published, err := i.configMaps.Get(ctx, i.options.ConfigMapName, metav1.GetOptions{})
		if err != nil || bytes.Equal([]byte(published.Data[publishedKey]), text) {
			return err
		}
		if published.Data == nil {
			published.Data = map[string]string{}
		}
		published.Data[publishedKey] = string(text)
		_, err = i.configMaps.Update(ctx, published, metav1.UpdateOptions{})
		return err
	})
	return explain("configmap", i.options.ConfigMapName, err)
}

func explain(kind, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s %s: %w: create it, empty", kind, name, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s %s: %w: let the proxy get and update it", kind, name, err)
	}
	return fmt.Errorf("%s %s: %w", kind, name, err)
}
