package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
)

var builds [2]struct {
	sync.Once
	err error
}

// BuildProxy builds cmd/watchproxy, with or without the race detector, and returns the binary's
// path. A process builds each variant at most once. Processes that build the same variant wait for
// each other.
func BuildProxy(ctx context.Context, race bool) (path string, err error) {
	name, build := "watchproxy-test", &builds[0]
	if race {
		name, build = "watchproxy-race", &builds[1]
	}
	path = filepath.Join(Root(), "bin", name)
	build.Do(func() { build.err = buildProxy(ctx, race, path) })
	return path, build.err
}

func buildProxy(ctx context.Context, race bool, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // only the lock matters
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("cannot lock %s: %w", lock.Name(), err)
	}

	args := []string{"build", "-buildvcs=false", "-tags", "grpcnotrace", "-o", path} // like the Makefile
	if race {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/watchproxy")...)
	cmd.Dir = Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build watchproxy: %w\n%s", err, out)
	}
	return nil
}
