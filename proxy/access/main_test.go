package access

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	const queue = "k8s.io/client-go/util/workqueue."
	goleak.VerifyTestMain(
		m,
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"), // lives as long as the process
		goleak.IgnoreTopFunction(queue+"(*delayingType[...]).waitingLoop"),  // of certificates that are made but not followed
		goleak.IgnoreTopFunction(queue+"(*Typed[...]).updateUnfinishedWorkLoop"),
	)
}
