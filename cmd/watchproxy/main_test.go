package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// asProgram makes the test's binary be watchproxy.
const asProgram = "WATCHPROXY_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		if files := os.Getenv(withFiles); files != "" {
			if err := limitFiles(files); err != nil {
				panic(err)
			}
		}
		main()
		os.Exit(0)
	}
	// klog, which client-go brings along, flushes for as long as the process lives.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}
