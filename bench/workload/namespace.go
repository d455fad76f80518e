package workload

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Namespaces are the namespaces of the workload's objects.
var Namespaces = []string{
	"accounts", "ads", "billing", "cart", "catalog", "checkout", "fraud", "identity", "inventory", "logistics",
	"mail", "media", "orders", "payments", "pricing", "ranking", "reviews", "search", "shipping", "support",
}

// CreateNamespaces creates all of Namespaces.
func CreateNamespaces(ctx context.Context, client kubernetes.Interface) error {
	for _, name := range Namespaces {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("cannot create namespace %s: %w", name, err)
		}
	}
	return nil
}
