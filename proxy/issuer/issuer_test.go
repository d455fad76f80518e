package issuer

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Invariant 1: replicas that start at the same moment serve certificates from one CA, the published
// CA.
func TestReplicasShareOneCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		var all sync.WaitGroup
		replicas := make([]*Issuer, 8)
		for n := range replicas {
			all.Go(func() {
				var err error
				if replicas[n], err = w.start(t); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for _, i := range replicas {
			w.verifies(t, i)
		}
		if w.secretWrites != 1 {
			t.Errorf("the CA was written %d times", w.secretWrites)
		}
	})
}

// A serving certificate is renewed before it expires, even while the apiserver cannot be reached.
// (Invariant 4.)
func TestServingCertificateIsRenewed(t *testing.T) {
	for name, broken := range map[string]error{"reachable": nil, "unreachable": errors.New("no route to host")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				i := w.runs(t)
				l := &listener{}
				i.AddListener(l)
				w.fail(broken)
				before := leaf(t, &i.served)
				time.Sleep(validity/2 + time.Hour)
				if after := leaf(t, &i.served); !after.Equal(before) {
					t.Error("a certificate is renewed in the first half of its time")
				}
				const times = 2
				for range times {
					time.Sleep(validity)
					w.verifies(t, i)
				}
				if l.told < times {
					t.Errorf("the listener was told %d times", l.told)
				}
			})
		})
	}
}

// If somebody empties the Secret, a running proxy makes a new CA, publishes it and serves its
// certificate.
func TestEmptiedSecretMeansNewCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		i := w.runs(t)
		old := w.published()
		w.locked(func() { w.secret.Data = nil })
		time.Sleep(2 * interval)
		w.verifies(t, i)
		if err := i.accepted(t, old); err == nil {
			t.Error("the old CA is still in use")
		}
	})
}

// If somebody changes the ConfigMap, the proxy restores the CA there and keeps other keys.
func TestPublishedCAIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		i := w.runs(t)
		w.locked(func() { w.configMap.Data = map[string]string{"ca.crt": "other", "else": "kept"} })
		time.Sleep(2 * interval)
		w.verifies(t, i)
		if w.configMap.Data["else"] != "kept" {
			t.Error("another key is gone")
		}
	})
}

// world has the Secret and the ConfigMap, with the apiserver's check of the resourceVersion.
type world struct {
	mu           sync.Mutex
	secret       corev1.Secret
	configMap    corev1.ConfigMap
	version      byte
	secretWrites int
	secretReads  int
	err          error
}

func newWorld() *world { return &world{} }

func (w *world) locked(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

func (w *world) fail(err error) { w.locked(func() { w.err = err }) }

func (w *world) published() (ca string) {
	w.locked(func() { ca = w.configMap.Data["ca.crt"] })
	return ca
}

var options = Options{
	Namespace: "n", SecretName: "ca", ConfigMapName: "ca",
	DNSNames: []string{"watchproxy.example.svc"}, IPAddresses: []string{"10.0.0.1"},
}

func (w *world) start(t *testing.T) (*Issuer, error) {
	return start(t.Context(), core{w: w}, options, zap.NewNop())
}

// runs starts an Issuer, which ends with the test.
func (w *world) runs(t *testing.T) *Issuer {
	t.Helper()
	i, err := w.start(t)
	if err != nil {
		t.Fatal(err)
	}
	inBackground(t, i)
	return i
}

func (w *world) verifies(t *testing.T, i *Issuer) {
	t.Helper()
	if err := i.accepted(t, w.published()); err != nil {
		t.Error(err)
	}
}

// accepted returns nil if clients with a CA accept the certificate.
func (i *Issuer) accepted(t *testing.T, ca string) error {
	t.Helper()
	return verify(t, &i.served, ca, options.DNSNames[0], options.IPAddresses[0])
}

func verify(t *testing.T, i *served, ca string, names ...string) error {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(ca)) {
		t.Fatalf("no CA: %q", ca)
	}
	var errs []error
	for _, name := range names {
		_, err := leaf(t, i).Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: time.Now()})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func leaf(t *testing.T, i *served) *x509.Certificate {
	t.Helper()
	text, _ := i.CurrentCertKeyContent()
	block, _ := pem.Decode(text)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// inBackground runs an Issuer or a Pod until the test ends.
func inBackground(t *testing.T, i interface{ Run(context.Context, int) }) {
	t.Helper()
	var running sync.WaitGroup
	running.Go(func() { i.Run(t.Context(), 1) })
	t.Cleanup(running.Wait) // its context has ended then
}

type listener struct{ told int }

func (l *listener) Enqueue() { l.told++ }

type core struct {
	typed.CoreV1Interface
	w *world
}

func (c core) Secrets(string) typed.SecretInterface { return secrets{w: c.w} }

func (c core) ConfigMaps(string) typed.ConfigMapInterface { return configMaps{w: c.w} }

type secrets struct {
	typed.SecretInterface
	w *world
}

func (s secrets) Get(context.Context, string, metav1.GetOptions) (found *corev1.Secret, err error) {
	s.w.locked(func() { found, err, s.w.secretReads = s.w.secret.DeepCopy(), s.w.err, s.w.secretReads+1 })
	time.Sleep(time.Millisecond) // all replicas read before one writes
	return found, err
}

func (s secrets) Update(_ context.Context, o *corev1.Secret, _ metav1.UpdateOptions) (_ *corev1.Secret, err error) {
	s.w.locked(func() {
		if err = s.w.check(o.ResourceVersion, s.w.secret.ResourceVersion); err == nil {
			s.w.secret, s.w.secretWrites = *o.DeepCopy(), s.w.secretWrites+1
			s.w.secret.ResourceVersion = string('a' + rune(s.w.version))
		}
	})
	return o, err
}

type configMaps struct {
	typed.ConfigMapInterface
	w *world
}

func (c configMaps) Get(context.Context, string, metav1.GetOptions) (found *corev1.ConfigMap, err error) {
	c.w.locked(func() { found, err = c.w.configMap.DeepCopy(), c.w.err })
	time.Sleep(time.Millisecond)
	return found, err
}

func (c configMaps) Update(_ context.Context, o *corev1.ConfigMap, _ metav1.UpdateOptions) (_ *corev1.ConfigMap, err error) {
	c.w.locked(func() {
		if err = c.w.check(o.ResourceVersion, c.w.configMap.ResourceVersion); err == nil {
			c.w.configMap = *o.DeepCopy()
			c.w.configMap.ResourceVersion = string('a' + rune(c.w.version))
		}
	})
	return o, err
}

func (w *world) check(version, current string) error {
	if version != current {
		return apierrors.NewConflict(schema.GroupResource{}, "ca", errors.New("it was modified"))
	}
	w.version++
	return nil
}
