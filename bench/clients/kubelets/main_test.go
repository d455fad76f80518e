// Package kubelets runs a whole cluster without containers: the apiserver, the controllers, the
// scheduler, and kubelets on a fake runtime (bin/kubenode). The kubelets use their nodes'
// identities. They reach the apiserver directly, through a proxy on each node, or through one proxy
// for all. A Deployment must have the same life each time, and the apiserver's audit log shows what
// it sees of the kubelets.
//
// bin/kubenode takes minutes to compile, so the test runs only in make verify and make kubelets.
package kubelets

import (
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m) }
