// Package discovery finds out what upstream serves: groups, versions and resources, which of them
// kube-apiserver serves itself, and how custom resources are defined. It follows the definitions,
// because upstream serves a custom resource in other bytes once its definition has changed.
package discovery
