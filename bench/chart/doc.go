// Package chart tests the Helm chart in charts/watchproxy in three ways: with Helm's own linter and
// templates, with a real apiserver, and, for its metrics, with Prometheus' parser and rules engine.
//
// The package is a separate module, so that no other module compiles Helm and Prometheus. Its tool
// directive provides the helm command:
//
//	go tool helm template watchproxy ../../charts/watchproxy --show-only templates/rbac.yaml
//
// TestMatrix installs 50 combinations of values, upgrades each of them to two others and uninstalls
// it. -seed repeats the choice of combinations. Like all that takes minutes, it needs -tags verify.
// TestHelmTest acts as the kubelet for `helm test`.
//
// testdata/values contains the combinations of values that the tests render. The tests lint each
// rendering, validate its configuration, and submit all of its objects to the apiserver.
//
// testdata/crds contains definitions of the custom resources that the chart creates. The
// definitions have only the fields that the chart uses. So the apiserver refuses any other field.
package chart
