package conformance

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// rights makes the proxy run as a service account with the roles in a file, instead of as admin.
// The suite's client then uses another token.
var rights = flag.String("rbac", "", "YAML `FILE` with a service account and its roles, as the chart renders them: the proxy runs as that")

// restrict grants the file's roles to its service account, and returns a kubeconfig for this account.
func restrict(ctx context.Context, tb testing.TB, server *cluster.APIServer) (kubeconfig string) {
	tb.Helper()
	if *tiers != 1 {
		tb.Fatal("-rbac: clients bring a token, which takes one proxy: without -tiers")
	}
	account, err := serviceAccountIn(*rights)
	if err != nil {
		tb.Fatalf("-rbac: %v", err)
	}
	server.NamespaceT(tb, account.Namespace)
	apply := exec.CommandContext(ctx, cluster.KubectlT(tb), "--kubeconfig", server.Kubeconfig, "apply", "--filename", *rights)
	if out, err := apply.CombinedOutput(); err != nil {
		tb.Fatalf("-rbac: kubectl apply: %v\n%s", err, out)
	}
	// Without this right the proxy does not start.
	reviews := authorizationv1.ResourceAttributes{Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"}
	if err := server.AwaitRights(ctx, "system:serviceaccount:"+account.Namespace+":"+account.Name, reviews); err != nil {
		tb.Fatalf("-rbac: %v", err)
	}
	token, err := server.Client().CoreV1().ServiceAccounts(account.Namespace).CreateToken(ctx, account.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	return server.KubeconfigT(tb, server.URL, token.Status.Token)
}

// serviceAccountIn returns the service account in a file.
func serviceAccountIn(file string) (account corev1.ServiceAccount, err error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return account, err
	}
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		if err := yaml.Unmarshal([]byte(document), &account); err == nil && account.Kind == "ServiceAccount" && account.Namespace != "" {
			return account, nil
		}
	}
	return account, fmt.Errorf("%s has no service account with a namespace", file)
}
