// Package chart tests the Helm chart in charts/watchproxy in three ways: with Helm's own linter and
// templates, with a real apiserver, and, for its metrics, with Prometheus' parser and rules engine.
//
// It is a module of its own, so that no other module compiles Helm and Prometheus. Its tool
// directive provides the helm command:
//
//	go tool helm template watchproxy ../../charts/watchproxy --show-only templates/rbac.yaml
//
// testdata/values contains the combinations of values that the tests render. The tests lint each
// rendering, validate its configuration, and submit all of its objects to the apiserver.
//
// testdata/crds contains definitions of the custom resources that the chart creates. They have only
// the fields that the chart uses, so the apiserver refuses any other field.
package chart
