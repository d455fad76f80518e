package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/watchproxy/watchproxy/config"
	"github.com/watchproxy/watchproxy/watchcache/upstream"
)

// When upstream stops to accept the token of an exec plugin or of a file, no request of the proxy's
// own fails if there is a new token: neither a feed's nor a review.
func TestNewTokenAfterRefusal(t *testing.T) {
	var valid atomic.Value
	valid.Store("first")
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer "+valid.Load().(string):
			w.WriteHeader(http.StatusUnauthorized)
		case r.Method == http.MethodPost:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"authenticated":true}}`)
		default:
			fmt.Fprint(w, `{"gitVersion":"v1"}`)
		}
	}))
	defer server.Close()
	for name, user := range map[string]func(file string) clientcmdapi.AuthInfo{
		"file": func(file string) clientcmdapi.AuthInfo { return clientcmdapi.AuthInfo{TokenFile: file} },
		"plugin": func(file string) clientcmdapi.AuthInfo {
			const credential = `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"'$(cat "$0")'"}}`
			return clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
				APIVersion: "client.authentication.k8s.io/v1", Command: "sh", Args: []string{"-c", "echo '" + credential + "'", file},
				InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file, kubeconfig := filepath.Join(dir, "token"), filepath.Join(dir, "kubeconfig")
			token := 0
			renew := func() {
				token++
				valid.Store(fmt.Sprint(name, token))
				if err := os.WriteFile(file, []byte(valid.Load().(string)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			renew()
			c := clientcmdapi.NewConfig()
			c.Clusters["c"] = &clientcmdapi.Cluster{Server: server.URL, InsecureSkipTLSVerify: true}
			c.AuthInfos["u"] = new(user(file))
			c.Contexts["c"], c.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "c"
			if err := clientcmd.WriteToFile(*c, kubeconfig); err != nil {
				t.Fatal(err)
			}
			metrics := upstream.NewMetrics(prometheus.NewRegistry())
			behind, err := connect(t.Context(), &config.ProxyConfiguration{Upstream: config.Upstream{Kubeconfig: kubeconfig}, Listen: "127.0.0.1:1"}, 1<<16, metrics, zap.NewNop())
			if err != nil {
				t.Fatal(err)
			}
			feeds := behind.client(metrics)
			rc := behind.config()
			reviews, err := kubernetes.NewForConfig(rc)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				renew()
				var version struct{ GitVersion string }
				if err := feeds.Read(t.Context(), schema.GroupVersionResource{}, "/version", &version); err != nil || version.GitVersion != "v1" {
					t.Errorf("a feed reads %v, %v", version, err)
				}
				renew()
				review, err := reviews.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{}, metav1.CreateOptions{})
				if err != nil || !review.Status.Authenticated {
					t.Errorf("a review: %+v, %v", review, err)
				}
			}
			valid.Store("lost")
			if err := feeds.Read(t.Context(), schema.GroupVersionResource{}, "/version", &struct{}{}); err == nil || !strings.Contains(err.Error(), "401") {
				t.Errorf("with a lost token a feed reads without error: %v", err)
			}
		})
	}
}
