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

// atLength reports whether this is a long run, which has more clients.
func atLength() bool { return *length >= 10*time.Second }

// victimVariable is an environment variable. It makes this program the victim and contains its
// orders.
const victimVariable = "HOSTILE_VICTIM"

func TestMain(m *testing.M) {
	if orders := os.Getenv(victimVariable); orders != "" {
		os.Exit(beVictim(orders))
	}
	runtime.GOMAXPROCS(1) // for the attackers; other processes need the rest of the machine
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	cluster.Main(m)
}

// limit limits every wait for an event that should happen soon, even on a busy machine.
const limit = 60 * time.Second
