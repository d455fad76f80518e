package hostile

import (
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// In production a proxy has its own processors. Here it shares them with the apiserver and the
// attackers. So the apiserver and the attackers run only when no thread of the proxy and the
// victim needs a processor. A nice value is not enough: a running thread of nice 19 keeps its
// processor for up to 3 ms while others wake up, and a get needs several wake-ups.
const (
	whenIdle = unix.SCHED_IDLE
	asUsual  = unix.SCHED_NORMAL
)

// share sets the priority of all processes. It does so only in a long run, because beside other
// tests the attackers would make no progress. Processes that start later inherit this process's
// priority.
func (w *world) share() {
	prioritize(ownPID, whenIdle)
	prioritize(w.api.PID(), whenIdle)
	prioritize(w.front.proxy.PID(), asUsual)
	prioritize(w.victim.cmd.Process.Pid, asUsual)
}

// prioritize sets the scheduling policy of a process. Threads that the process makes later inherit
// the policy.
func prioritize(pid int, policy uint32) {
	threads, _ := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			_ = unix.SchedSetAttr(id, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policy}, 0)
		}
	}
}

// idle waits until the apiserver has finished the work from the previous row.
func (w *world) idle(t *testing.T) {
	t.Helper()
	const pause, quiet = 200 * time.Millisecond, 60 * time.Millisecond
	before, err := w.api.CPU()
	for end := time.Now().Add(limit); err == nil && time.Now().Before(end); {
		cluster.Pause(t.Context(), pause)
		var now time.Duration
		if now, err = w.api.CPU(); now-before < quiet {
			return
		}
		before = now
	}
	if err != nil {
		t.Error(err)
	}
}
