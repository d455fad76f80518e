package cluster

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if fifo := os.Getenv(orphanLog); fifo != "" {
		orphan(fifo)
	}
	Main(m)
}
