package conformance

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	strictyaml "sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// rights has the proxy run as a service account with what a file gives it, instead of as admin. The suite's client
// brings its own token then.
var rights = flag.String("rbac", "", "YAML `FILE` with a service account and its roles, as the chart renders them: the proxy runs as that")

// restrict gives the file's service account its rights, and returns a kubeconfig and the proxy's arguments for it.
func restrict(ctx context.Context, server *cluster.APIServer) (kubeconfig string, args []string, err error) {
	if *plain || *tiers != 1 {
		return "", nil, errors.New("-rbac: clients bring a token, which takes TLS and one proxy: without -plain and -tiers")
	}
	account, err := serviceAccountIn(*rights)
	if err != nil {
		return "", nil, fmt.Errorf("-rbac: %w", err)
	}
	client, err := kubernetes.NewForConfig(server.RESTConfig())
	if err != nil {
		return "", nil, err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: account.Namespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", nil, err
	}
	kubectl, err := cluster.Kubectl()
	if err != nil {
		return "", nil, err
	}
	apply := exec.CommandContext(ctx, kubectl, "--kubeconfig", server.Kubeconfig, "apply", "--filename", *rights)
	if out, err := apply.CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("-rbac: kubectl apply: %w\n%s", err, out)
	}
	if err := awaitReviews(ctx, client, account); err != nil {
		return "", nil, fmt.Errorf("-rbac: %w", err)
	}
	token, err := client.CoreV1().ServiceAccounts(account.Namespace).CreateToken(ctx, account.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", nil, err
	}
	kubeconfig = filepath.Join(server.Dir, "service-account.kubeconfig")
	return kubeconfig, []string{"--authentication", "delegated"}, server.WriteKubeconfig(kubeconfig, token.Status.Token)
}

// serviceAccountIn finds the service account in a file.
func serviceAccountIn(file string) (account corev1.ServiceAccount, err error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return account, err
	}
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return account, fmt.Errorf("%s has no service account with a namespace", file)
		} else if err != nil {
			return account, err
		}
		if err := strictyaml.Unmarshal(document, &account); err == nil && account.Kind == "ServiceAccount" && account.Namespace != "" {
			return account, nil
		}
	}
}

// awaitReviews waits until the apiserver knows that the service account may have tokens reviewed, without which the proxy
// does not start.
func awaitReviews(ctx context.Context, client kubernetes.Interface, account corev1.ServiceAccount) error {
	for {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + account.Namespace + ":" + account.Name,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"},
		}}
		review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("%s may not have tokens reviewed: %w", account.Name, err)
		}
		if review.Status.Allowed {
			return nil
		}
	}
}
