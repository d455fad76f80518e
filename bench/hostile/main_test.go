package hostile

import (
	"flag"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

var (
	length     = flag.Duration("length", 300*time.Millisecond, "how long each row goes on")
	reportFile = flag.String("report", "", "write the table to a `FILE`")
)

// atLength tells that there is time for more clients.
func atLength() bool { return *length >= 10*time.Second }

// victimVariable in the environment makes this program the victim, and holds its orders.
const victimVariable = "HOSTILE_VICTIM"

func TestMain(m *testing.M) {
	if orders := os.Getenv(victimVariable); orders != "" {
		os.Exit(beVictim(orders))
	}
	runtime.GOMAXPROCS(1) // the attackers': others need the rest of the machine
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	cluster.Main(m)
}

// limit bounds every wait for something that ought to happen soon, on a machine that is busy with
// other things.
const limit = 60 * time.Second
