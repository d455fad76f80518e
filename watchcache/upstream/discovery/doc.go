// Package discovery finds out what upstream serves: groups, versions and resources, whether
// kube-apiserver serves a resource itself, and how custom resources are defined. It follows the
// definitions because upstream writes different bytes for a custom resource after its definition
// has changed.
package discovery
