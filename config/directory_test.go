package config

import (
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// asUser runs a function as a user that is not root, because root may write everything.
func asUser(t *testing.T, do func()) {
	t.Helper()
	if os.Getuid() != 0 {
		do()
		return
	}
	const nobody = 65534
	var running sync.WaitGroup
	running.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); err != 0 {
			t.Errorf("cannot become another user: %v", err)
			return
		}
		do()
	})
	running.Wait()
}

// A log that cannot be rotated is an error of its field. Nothing is created.
func TestDirectories(t *testing.T) {
	dir := t.TempDir()
	open, closed := filepath.Join(dir, "open"), filepath.Join(dir, "closed")
	for _, sub := range []string{open, closed} {
		if err := os.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
		log := filepath.Join(sub, "audit.log")
		if err := os.WriteFile(log, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(log, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	policy := filepath.Join(open, "policy.yaml")
	if err := os.WriteFile(policy, []byte(goodPolicy), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{filepath.Dir(dir): 0o755, dir: 0o755, open: 0o777, closed: 0o555} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Chmod(closed, 0o755) })
	audit := func(more string) string { return "audit: {policyFile: " + policy + ", logPath: " + more + "}\n" }
	for text, want := range map[string]string{
		audit(open + "/audit.log"):                  "",
		audit(open + "/new/audit.log"):              "",
		audit(closed + "/audit.log"):                "the log cannot be rotated (logMaxSize): the user may not create files in " + closed,
		audit(closed + "/audit.log, logMaxSize: 0"): "",
		audit(closed + "/new.log, logMaxSize: 0"):   "the user may not create files in " + closed,
		audit(closed + "/new/audit.log"):            "the user may not create files in " + closed,
		audit("/dev/null"):                          "",
		audit(policy + "/audit.log"):                policy + "/audit.log: not a directory",
	} {
		c, err := load(t, head+text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		asUser(t, func() { err = c.Audit.CheckFiles(field.NewPath("audit")).ToAggregate() })
		refusedFor(t, text, err, want)
	}
	if _, err := os.Stat(filepath.Join(open, "new")); !os.IsNotExist(err) {
		t.Errorf("validation made a directory: %v", err)
	}
}
