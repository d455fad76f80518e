//go:build verify

package commandline

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// firstAnswerTime is the README's promise about the time from the build to the first answer from the
// cache.
const firstAnswerTime = time.Minute

// A newcomer who clones the repository gets the first answer from the cache by the README's first
// commands, in order, soon after the build. The clone has the last commit, not uncommitted changes.
func TestFreshClone(t *testing.T) {
	t.Parallel()
	w := clients.NewWorld(t)
	dir := filepath.Join(t.TempDir(), "watchproxy")
	newcomer(t, cluster.Root(), "git", "clone", "-q", ".", dir)
	readme, err := filepath.Rel(cluster.Root(), filepath.Join(dir, "README.md"))
	must(t, err)
	commands := cluster.CommandsT(t, readme)
	if commands[0] != "make build" {
		t.Fatalf("the README begins with %q", commands[0])
	}
	began := time.Now()
	newcomer(t, dir, "make", "build")
	t.Logf("the build took %v", time.Since(began))

	shell := newShell(t, w, dir)
	began = time.Now()
	for n, command := range commands[1:] {
		out, err := shell.run(t, command)
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		if !strings.Contains(out, "readme-pod") {
			continue
		}
		took := time.Since(began)
		t.Logf("the first answer came by command %d, %v after the build", n+2, took)
		if n+2 > firstAnswerCommands {
			t.Errorf("a newcomer needs %d commands", n+2)
		}
		if took > firstAnswerTime {
			t.Errorf("a newcomer waits for %v after the build", took)
		}
		shell.answersFromCache(t)
		return
	}
	t.Errorf("none of %q shows the pod", commands)
}

// newcomer runs a command with the environment of this test, except that a make which runs the test
// does not influence another.
func newcomer(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	const limit = 10 * time.Minute // Go's cache of builds may be empty
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS") || strings.HasPrefix(v, "VERSION=") || strings.HasPrefix(v, "GIT_")
	})
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
