package faults

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// A test cannot set the wall clock of another process from outside. Go reads the time from the
// kernel's page and not through libc, and time namespaces (time_namespaces(7)) do not cover
// CLOCK_REALTIME. So the test builds the proxy with a changed package time. It adds the offset in a
// file to the wall clock and leaves the monotonic clock as it is, as after a change of the
// machine's time. The proxy and all of its libraries use this package.

const clockVariable = "WATCHPROXY_TEST_CLOCK"

const clockSource = `package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

var wallShift = shiftFrom()

func shiftFrom() *int64 {
	name, ok := syscall.Getenv("` + clockVariable + `")
	if !ok {
		return new(int64)
	}
	fd, err := syscall.Open(name, syscall.O_RDONLY, 0)
	if err != nil {
		panic(err)
	}
	page, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	return (*int64)(unsafe.Pointer(&page[0]))
}

func shifted() (sec int64, nsec int32, mono int64) {
	sec, nsec, mono = runtimeNow()
	if wallShift != nil { // set while the package is initialized
		sec += atomic.LoadInt64(wallShift)
	}
	return sec, nsec, mono
}
`

// clockProxy builds such a proxy, once. Proxies that start after the call use this clock.
func clockProxy(t *testing.T) (binary string) {
	t.Helper()
	binary = filepath.Join(cluster.Root(), "bin", "watchproxy-clock")
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir, std := t.TempDir(), filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	source, err := os.ReadFile(filepath.Join(std, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const asks = "sec, nsec, mono := runtimeNow()"
	if n := strings.Count(string(source), asks); n != 1 {
		t.Fatalf("package time asks for the time in %d places instead of one", n)
	}
	overlay := map[string]map[string]string{"Replace": {}}
	for name, text := range map[string]string{
		"time.go":  strings.Replace(string(source), asks, "sec, nsec, mono := shifted()", 1),
		"shift.go": clockSource,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay["Replace"][filepath.Join(std, name)] = path
	}
	description, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, description, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace", "-overlay", file, "-o", binary, "./cmd/watchproxy")
	cmd.Dir, cmd.Env = cluster.Root(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the proxy with a clock of its own: %v\n%s", err, out)
	}
	t.Setenv(clockVariable, filepath.Join(dir, "clock"))
	setClock(t, 0)
	return binary
}

// setClock sets the proxy's wall clock ahead by an offset.
func setClock(t *testing.T, ahead time.Duration) {
	t.Helper()
	file, err := os.OpenFile(os.Getenv(clockVariable), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead/time.Second)), 0); err != nil {
		t.Fatal(err)
	}
}

// jump sets the proxy's clock back and forth, and cuts connections, so that the clients and the
// proxy have to resume.
func jump(t *testing.T, w *world) {
	for _, ahead := range []time.Duration{time.Hour, -time.Hour, 24 * time.Hour, 0} {
		setClock(t, ahead)
		time.Sleep(lasting / 3)
		w.down.End(true)
		time.Sleep(lasting / 3)
		w.up.End(true)
		time.Sleep(lasting / 3)
	}
}
