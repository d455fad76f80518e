package hostile

import (
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// A proxy has processors of its own in life. Here it shares them with the apiserver and the
// attackers, which therefore run at a lower priority than the proxies and the victim.
const lowPriority = 19

// share sets everybody's priority. Processes that began later have inherited this one's.
func (w *world) share() {
	prioritize(ownPID, lowPriority)
	prioritize(w.api.PID(), lowPriority)
	for _, p := range []*target{w.front, w.local, w.few} {
		prioritize(p.proxy.PID(), 0)
	}
	prioritize(w.victim.cmd.Process.Pid, 0)
}

// prioritize sets the priority of a process. Threads that it makes later inherit it. It takes rights
// to give back what was taken away: without them, a proxy that had to be started again is as slow as
// the others.
func prioritize(pid, nice int) {
	threads, _ := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			_ = syscall.Setpriority(syscall.PRIO_PROCESS, id, nice)
		}
	}
}

// idle waits until the apiserver has done what the attackers of the row before have left it with.
func (w *world) idle(t *testing.T) {
	t.Helper()
	const pause, quiet = 200 * time.Millisecond, 60 * time.Millisecond
	before, err := w.api.CPU()
	for end := time.Now().Add(limit); err == nil && time.Now().Before(end); {
		wait(t.Context(), pause)
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
