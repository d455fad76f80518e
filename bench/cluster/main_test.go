package cluster

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if fifo := os.Getenv(orphanLog); fifo != "" {
		orphan(fifo)
	}
	goleak.VerifyTestMain(m)
}
