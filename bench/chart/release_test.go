package chart

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"testing"

	"go.uber.org/zap"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	releasev1 "helm.sh/helm/v4/pkg/release/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/proxy/issuer"
)

// release is an installation of the chart by Helm itself, in its own namespace.
type release struct {
	w     *world
	helm  *action.Configuration
	ns    string
	notes string // after the installation
}

func (w *world) release(t *testing.T, ns string) *release {
	t.Helper()
	flags := genericclioptions.NewConfigFlags(false).WithDiscoveryQPS(-1)
	flags.KubeConfig, flags.Namespace, flags.CacheDir = &w.api.Kubeconfig, &ns, &w.discovery
	flags.WrapConfigFn = func(c *rest.Config) *rest.Config { c.QPS = -1; return c }
	r := &release{w: w, helm: action.NewConfiguration(), ns: ns}
	must(t, r.helm.Init(flags, ns, "secret"))
	return r
}

// install installs the chart. It waits for no pods, because there are no nodes.
func (r *release) install(t *testing.T, values map[string]any) objects {
	t.Helper()
	i := action.NewInstall(r.helm)
	i.ReleaseName, i.Namespace, i.CreateNamespace, i.WaitStrategy = releaseName, r.ns, true, kube.HookOnlyStrategy
	i.DisableOpenAPIValidation = true // TestObjectsAreAccepted validates, and this takes half of the time
	installed, err := i.RunWithContext(t.Context(), loadChart(t), values)
	if err != nil {
		t.Fatalf("%s: install: %v", r.ns, err)
	}
	r.notes = installed.(*releasev1.Release).Info.Notes
	return parseObjects(t, installed.(*releasev1.Release).Manifest)
}

func (r *release) upgrade(t *testing.T, values map[string]any) objects {
	t.Helper()
	u := action.NewUpgrade(r.helm)
	u.Namespace, u.WaitStrategy, u.ResetValues = r.ns, kube.HookOnlyStrategy, true
	u.DisableOpenAPIValidation = true
	upgraded, err := u.RunWithContext(t.Context(), releaseName, loadChart(t), values)
	if err != nil {
		t.Fatalf("%s: upgrade: %v", r.ns, err)
	}
	return parseObjects(t, upgraded.(*releasev1.Release).Manifest)
}

// uninstall fails the test if objects are left, except for those that the test has made.
func (r *release) uninstall(t *testing.T, except ...string) {
	t.Helper()
	u := action.NewUninstall(r.helm)
	u.WaitStrategy = kube.HookOnlyStrategy
	if _, err := u.Run(releaseName); err != nil {
		t.Fatalf("%s: uninstall: %v", r.ns, err)
	}
	r.w.hasNothingOf(t, r.ns, except...)
}

// hasNoKeys fails if a private key is in the history of the release.
func (r *release) hasNoKeys(t *testing.T) {
	t.Helper()
	all, err := r.helm.Releases.History(releaseName)
	if err != nil || len(all) == 0 {
		t.Fatalf("%d releases: %v", len(all), err)
	}
	for _, one := range all {
		for _, o := range parseObjects(t, one.(*releasev1.Release).Manifest).of("Secret") {
			s := as[corev1.Secret](t, o)
			if len(s.Data)+len(s.StringData) > 0 {
				t.Errorf("%s: Secret %s has data in the history", r.ns, s.Name)
			}
		}
	}
}

// proxies does what the proxies of a release do with their certificate when they start, as their
// service account. It returns the CA.
func (r *release) proxies(t *testing.T, all objects) *x509.Certificate {
	t.Helper()
	c := configuration(t, all)
	if c.TLS == nil || c.TLS.Generated == nil {
		return nil
	}
	generated := c.TLS.Generated
	rc := r.w.api.RESTConfig()
	if accounts := all.of("ServiceAccount"); len(accounts) > 0 && len(all.of("Role")) > 0 {
		rc = r.w.identity(t, r.ns, accounts[0].GetName())
		r.w.awaitRights(t, "system:serviceaccount:"+r.ns+":"+accounts[0].GetName(),
			authorizationv1.ResourceAttributes{Verb: "update", Resource: "secrets", Namespace: r.ns, Name: generated.SecretName},
			authorizationv1.ResourceAttributes{Verb: "update", Resource: "configmaps", Namespace: r.ns, Name: generated.ConfigMapName})
	}
	i, err := issuer.New(t.Context(), rc, issuer.Options(*generated), zap.NewNop())
	must(t, err)
	serving, _ := i.CurrentCertKeyContent()
	return r.verified(t, serving, generated)
}

// verified verifies a serving certificate for all of its names against the published CA, and
// returns the CA.
func (r *release) verified(t *testing.T, serving []byte, g *config.GeneratedCertificate) *x509.Certificate {
	t.Helper()
	published, err := r.w.admin.CoreV1().ConfigMaps(r.ns).Get(t.Context(), g.ConfigMapName, metav1.GetOptions{})
	must(t, err)
	ca, leaf := parseCertificate(t, []byte(published.Data["ca.crt"])), parseCertificate(t, serving)
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	for _, name := range slices.Concat(g.DNSNames, g.IPAddresses) {
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots}); err != nil {
			t.Errorf("%s: %v", r.ns, err)
		}
	}
	return ca
}

func parseCertificate(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(bytes.TrimSpace(text))
	if block == nil {
		t.Fatalf("no PEM: %q", text)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	must(t, err)
	return c
}

// identity returns the credentials of a service account, like those that its pods get.
func (w *world) identity(t *testing.T, ns, account string) *rest.Config {
	t.Helper()
	request, err := w.admin.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	c := rest.AnonymousClientConfig(w.api.RESTConfig())
	c.BearerToken = request.Status.Token
	return c
}

// The certificate can come from elsewhere, and be generated again. Each switch works although
// cert-manager's Secret is not the release's.
func TestSourceOfTheCertificateCanChange(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	r := w.release(t, "switched")
	r.proxies(t, r.install(t, nil))
	r.upgrade(t, parseValues(t, `{tls: {mode: certManager}}`))
	for _, name := range []string{releaseName + "-tls", releaseName + "-ca"} { // as cert-manager does
		made := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": {}, "tls.key": {}}}
		if _, err := w.admin.CoreV1().Secrets(r.ns).Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if r.proxies(t, r.upgrade(t, nil)) == nil {
		t.Error("no CA")
	}
	r.upgrade(t, parseValues(t, `{tls: {mode: certManager}}`))
	r.upgrade(t, parseValues(t, `{tls: {mode: secret, secret: {name: certificate}}}`))
	r.proxies(t, r.upgrade(t, nil))
	r.hasNoKeys(t)
	r.uninstall(t, "Secret/"+releaseName+"-tls", "Secret/"+releaseName+"-ca")
}

// Rollbacks, and upgrades by Helm 3, which compares three versions of an object, keep the CA too.
func TestRollbackKeepsTheCA(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	r := w.release(t, "rolledback")
	install := action.NewInstall(r.helm)
	install.ReleaseName, install.Namespace, install.CreateNamespace, install.WaitStrategy = releaseName, r.ns, true, kube.HookOnlyStrategy
	install.ServerSideApply = false
	installed, err := install.RunWithContext(t.Context(), loadChart(t), nil)
	must(t, err)
	all := parseObjects(t, installed.(*releasev1.Release).Manifest)
	first := r.proxies(t, all)
	u := action.NewUpgrade(r.helm)
	u.Namespace, u.WaitStrategy, u.ServerSideApply = r.ns, kube.HookOnlyStrategy, "false"
	if _, err := u.RunWithContext(t.Context(), releaseName, loadChart(t), parseValues(t, `{commonLabels: {team: a}}`)); err != nil {
		t.Fatal(err)
	}
	back := action.NewRollback(r.helm)
	back.Version, back.WaitStrategy, back.ServerSideApply = 1, kube.HookOnlyStrategy, "false"
	must(t, back.Run(releaseName))
	if again := r.proxies(t, all); !again.Equal(first) {
		t.Error("another CA")
	}
	r.uninstall(t)
}
