package cluster

import (
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// WriteKubeconfig writes a kubeconfig that points at the apiserver, for the user of a token.
func (s *APIServer) WriteKubeconfig(path, token string) error {
	return s.WriteKubeconfigAt(path, s.URL, token)
}

// WriteKubeconfigAt is WriteKubeconfig for an apiserver that is reached under another URL.
func (s *APIServer) WriteKubeconfigAt(path, url, token string) error {
	c := clientcmdapi.NewConfig()
	c.Clusters["apiserver"] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: s.CA}
	c.AuthInfos["user"] = &clientcmdapi.AuthInfo{Token: token}
	c.Contexts["apiserver"] = &clientcmdapi.Context{Cluster: "apiserver", AuthInfo: "user"}
	c.CurrentContext = "apiserver"
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		return fmt.Errorf("kubeconfig of the apiserver: %w", err)
	}
	return nil
}
