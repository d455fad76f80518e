// Package discovery reads upstream's groups, versions and resources. It determines whether
// kube-apiserver serves a resource itself, and how custom resources are defined. It watches the
// definitions, because upstream writes different bytes for a custom resource after a change of its
// definition, and the APIServices, because an API may move to another server.
package discovery
