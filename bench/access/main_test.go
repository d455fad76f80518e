package access

import (
	"os"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

func TestMain(m *testing.M) {
	// In milliseconds. Without this setting, servers wait for five seconds before they send spans.
	if err := os.Setenv("OTEL_BSP_SCHEDULE_DELAY", "100"); err != nil {
		panic(err)
	}
	cluster.Main(m, cluster.ManyAtOnce)
}
