package main

import (
	"testing"

	"k8s.io/client-go/rest"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) {
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	cluster.Main(m)
}
