package main

import (
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// writeKubeconfig writes admin.kubeconfig. The file contains the CA and the token themselves, not
// their paths.
func writeKubeconfig(dir *stateDir, server string, creds credentials) error {
	const name = "kubeapi"
	content, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{
			name: {Server: server, CertificateAuthorityData: creds.caPEM},
		},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{
			"admin": {Token: creds.token},
		},
		Contexts: map[string]*clientcmdapi.Context{
			name: {Cluster: name, AuthInfo: "admin"},
		},
		CurrentContext: name,
	})
	if err != nil {
		return err
	}
	return dir.write("admin.kubeconfig", content, 0o600)
}
