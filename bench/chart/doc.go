// Package chart tests the Helm chart in charts/watchproxy by Helm's own code, with a real apiserver,
// and, for its alerts, with Prometheus' parser and rules engine.
//
// The package is a separate module, so that no other module compiles Helm and Prometheus. Its tool
// directive provides the helm command:
//
//	go tool helm template watchproxy ../../charts/watchproxy --show-only templates/rbac.yaml
//
// testdata/values.yaml says what values render, and testdata/refused.yaml which values the chart
// refuses. testdata/crds contains definitions of the custom resources that the chart creates. The
// definitions have only the fields that the chart uses, so that the apiserver refuses any other field.
package chart
