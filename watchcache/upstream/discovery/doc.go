// Package discovery finds out what upstream serves: groups, versions and resources, which resources
// kube-apiserver serves itself, and how custom resources are defined. It follows the definitions,
// because upstream writes a custom resource in other bytes after its definition has changed.
package discovery
