// Package chart tests the Helm chart in charts/watchproxy: by Helm's own linter and templates, against a real apiserver,
// and, what it says about metrics, by Prometheus' parser and rules engine.
//
// It is a module of its own, so that nothing else compiles Helm and Prometheus. Its tool directive brings the helm
// command:
//
//	go tool helm template watchproxy ../../charts/watchproxy --show-only templates/rbac.yaml
//
// testdata/values has the combinations of values that are rendered; each is linted, its configuration validated, and all
// of its objects are shown to the apiserver. testdata/crds has definitions of the custom resources that the chart makes
// objects of. They have those fields only that the chart uses, so that any other is refused.
package chart
