package cluster

import (
	"fmt"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// WriteKubeconfig writes a kubeconfig with one context, for a user of a server.
func WriteKubeconfig(path, url string, ca []byte, user clientcmdapi.AuthInfo) error {
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: ca}
	c.AuthInfos["u"] = &user
	c.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "c"
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", url, err)
	}
	return nil
}

// WriteKubeconfig writes a kubeconfig for the apiserver, with a user's token.
func (s *APIServer) WriteKubeconfig(path, token string) error {
	return WriteKubeconfig(path, s.URL, s.CA, clientcmdapi.AuthInfo{Token: token})
}

// KubeconfigT writes a kubeconfig with a user's token and a URL for the apiserver, and returns its
// path. The file is removed at the end of the test.
func (s *APIServer) KubeconfigT(tb testing.TB, url, token string) (path string) {
	tb.Helper()
	return KubeconfigT(tb, url, s.CA, token)
}

// KubeconfigT writes a kubeconfig with a user's token and returns its path. The file is removed at
// the end of the test.
func KubeconfigT(tb testing.TB, url string, ca []byte, token string) (path string) {
	tb.Helper()
	path = filepath.Join(tb.TempDir(), "kubeconfig")
	MustT(tb, WriteKubeconfig(path, url, ca, clientcmdapi.AuthInfo{Token: token}))
	return path
}
