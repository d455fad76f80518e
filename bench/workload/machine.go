package workload

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// Where tells the date, the commit and the machine of a measurement.
func Where(ctx context.Context) string {
	commit, machine := "unknown", ""
	git := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude=*")
	git.Dir = cluster.Root()
	if out, err := git.Output(); err == nil {
		commit = strings.TrimSpace(string(out))
	}
	// ARM's processors have no name there.
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if match := regexp.MustCompile(`(?m)^model name\s*: (.+)$`).FindSubmatch(info); match != nil {
			machine = ", " + strings.TrimSpace(string(match[1]))
		}
	}
	return fmt.Sprintf("%s, commit %s, %s/%s, %d processors%s.",
		time.Now().UTC().Format(time.DateOnly), commit, runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), machine)
}
