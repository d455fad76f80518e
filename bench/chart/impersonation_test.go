package chart

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/keyutil"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// What a client with a certificate has forwarded arrives as that client, if the proxy may impersonate it, and does not
// arrive otherwise.
func TestImpersonation(t *testing.T) {
	w := sharedWorld(t)
	p := w.proxyWithRights(t, `{persistence: {type: none}, cachedResources: [pods],
		rbac: {impersonation: {enabled: true, users: [jane], groups: [developers, "system:authenticated"]}}}`)
	for _, kind := range []string{
		`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: writer}, rules: [
			{apiGroups: [""], resources: [configmaps], verbs: [create]}]}`,
		`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: writer},
			roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: writer},
			subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: developers}]}`,
	} {
		for _, o := range parseObjects(t, kind) {
			if err := w.apply(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.awaitRights(t, proxyIdentity, authorizationv1.ResourceAttributes{Verb: "impersonate", Resource: "users", Name: "jane"})

	create := func(user string) error {
		configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: user + "-"}}
		_, err := w.certified(t, p, user, "developers").CoreV1().ConfigMaps(namespace).Create(t.Context(), configMap, metav1.CreateOptions{})
		return err
	}
	if err := create("jane"); err != nil {
		t.Error(err)
	}
	if err := create("john"); !apierrors.IsForbidden(err) {
		t.Errorf("the proxy may not impersonate john, and he got %v", err)
	}
	for _, r := range w.requests(t) {
		if r.Verb == "create" && r.ObjectRef.Resource == "configmaps" && r.ObjectRef.Namespace == namespace && r.ResponseStatus.Code == 201 && r.ImpersonatedUser != nil {
			if r.User.Username != proxyIdentity || r.ImpersonatedUser.Username != "jane" {
				t.Errorf("it arrived as %s by %s", r.ImpersonatedUser.Username, r.User.Username)
			}
			return
		}
	}
	t.Error("it did not arrive")
}

// certified is a client with a certificate of the cluster's authority.
func (w *world) certified(t *testing.T, p *cluster.Proxy, user string, groups ...string) *kubernetes.Clientset {
	t.Helper()
	block, _ := pem.Decode(w.api.CA)
	authority, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(w.api.Dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	authorityKey, err := keyutil.ParsePrivateKeyPEM(text)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: user, Organization: groups},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, authority, key.Public(), authorityKey)
	if err != nil {
		t.Fatal(err)
	}
	config := p.RESTConfig()
	config.CertData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if config.KeyData, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		t.Fatal(err)
	}
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
