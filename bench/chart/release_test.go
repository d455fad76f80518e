package chart

import (
	"testing"

	"go.uber.org/zap"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	releasev1 "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/proxy/issuer"
)

// release is an installation of the chart by Helm itself, in its own namespace.
type release struct {
	w     *world
	helm  *action.Configuration
	ns    string
	made  objects // by Helm
	first *releasev1.Release
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

// install installs the chart. It waits for no pods, because there are no nodes. Helm 3 does not
// apply objects on the server.
func (r *release) install(t *testing.T, serverSide bool) objects {
	t.Helper()
	i := action.NewInstall(r.helm)
	i.ReleaseName, i.Namespace, i.CreateNamespace, i.WaitStrategy = releaseName, r.ns, true, kube.HookOnlyStrategy
	i.ServerSideApply = serverSide
	installed, err := i.RunWithContext(t.Context(), loadChart(t), nil)
	must(t, err)
	r.first = installed.(*releasev1.Release)
	r.made = parseObjects(t, r.first.Manifest)
	return r.made
}

func (r *release) upgrade(t *testing.T, values string) objects {
	t.Helper()
	u := action.NewUpgrade(r.helm)
	u.Namespace, u.WaitStrategy, u.ResetValues = r.ns, kube.HookOnlyStrategy, true
	upgraded, err := u.RunWithContext(t.Context(), releaseName, loadChart(t), parseValues(t, values))
	must(t, err)
	all := parseObjects(t, upgraded.(*releasev1.Release).Manifest)
	r.made = append(r.made, all...)
	return all
}

// uninstall fails the test if an object is left.
func (r *release) uninstall(t *testing.T) {
	t.Helper()
	u := action.NewUninstall(r.helm)
	u.WaitStrategy = kube.HookOnlyStrategy
	_, err := u.Run(releaseName)
	must(t, err)
	for _, o := range r.made {
		mapping, err := r.w.mapping.RESTMapping(o.GroupVersionKind().GroupKind())
		must(t, err)
		client := r.w.dynamic.Resource(mapping.Resource).Namespace(o.GetNamespace())
		if left, err := client.Get(t.Context(), o.GetName(), metav1.GetOptions{}); err == nil && left.GetDeletionTimestamp() == nil {
			t.Errorf("%s %s/%s is left", o.GetKind(), o.GetNamespace(), o.GetName())
		}
	}
}

// authority does what the proxies do with their certificate when they start, as their service
// account. It returns the CA that they publish.
func (r *release) authority(t *testing.T, all objects) string {
	t.Helper()
	generated := configuration(t, all).TLS.Generated
	r.w.awaitRights(t, r.ns)
	rc := rest.AnonymousClientConfig(r.w.api.RESTConfig())
	rc.BearerToken = r.w.token(t, r.ns)
	_, err := issuer.New(t.Context(), rc, issuer.Options(*generated), zap.NewNop())
	must(t, err)
	published, err := r.w.admin.CoreV1().ConfigMaps(r.ns).Get(t.Context(), generated.ConfigMapName, metav1.GetOptions{})
	must(t, err)
	return published.Data["ca.crt"]
}

// Upgrades and rollbacks keep the CA, also by Helm 3, which compares three versions of an object. The
// certificate can come from elsewhere, and be generated again, although cert-manager's Secret is not
// the release's. No private key is in the history of the release.
func TestUpgrades(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	r := w.release(t, "upgraded")
	all := r.install(t, false)
	first := r.authority(t, all)
	again := r.authority(t, r.upgrade(t, `{commonLabels: {team: a}}`))
	back := action.NewRollback(r.helm)
	back.Version, back.WaitStrategy = 1, kube.HookOnlyStrategy
	must(t, back.Run(releaseName))
	if last := r.authority(t, all); first == "" || again != first || last != first {
		t.Errorf("the CA is\n%sthen\n%sand then\n%s", first, again, last)
	}

	r.upgrade(t, `{tls: {mode: certManager}}`)
	for _, name := range []string{releaseName + "-tls", releaseName + "-ca"} { // as cert-manager does
		made := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": {}, "tls.key": {}}}
		_, err := w.admin.CoreV1().Secrets(r.ns).Create(t.Context(), made, metav1.CreateOptions{})
		must(t, err)
	}
	r.upgrade(t, `{tls: {mode: secret, secret: {name: certificate}}}`)
	if now := r.authority(t, r.upgrade(t, `{}`)); now == "" || now == first {
		t.Errorf("the new CA is %q", now)
	}
	history, err := r.helm.Releases.History(releaseName)
	must(t, err)
	for _, one := range history {
		for _, o := range parseObjects(t, one.(*releasev1.Release).Manifest).of("Secret") {
			if s := as[corev1.Secret](t, o); len(s.Data)+len(s.StringData) > 0 {
				t.Errorf("Secret %s has data in the history", s.Name)
			}
		}
	}
	r.uninstall(t)
}
