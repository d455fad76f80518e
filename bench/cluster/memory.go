package cluster

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// MemoryOf returns the resident memory of a process and its peak, in bytes.
func MemoryOf(pid int) (resident, peak int64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("cannot read the memory of process %d: %w", pid, err)
	}
	for _, of := range []struct {
		line string
		is   *int64
	}{{"VmRSS:", &resident}, {"VmHWM:", &peak}} {
		if *of.is, err = parseStatus(string(status), of.line); err != nil {
			return 0, 0, err
		}
	}
	return resident, peak, nil
}

// ProgramOf returns the part of a process's resident memory that is mapped from the program's file,
// in bytes.
func ProgramOf(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("cannot read the memory of process %d: %w", pid, err)
	}
	return parseStatus(string(status), "RssFile:")
}

// parseStatus finds a size in /proc/PID/status (proc_pid_status(5)). The unit kB in that file means
// 1,024 bytes.
func parseStatus(status, line string) (int64, error) {
	const kB = 1 << 10
	_, rest, _ := strings.Cut(status, line)
	size, _, ok := strings.Cut(rest, " kB")
	n, err := strconv.ParseInt(strings.TrimSpace(size), 10, 64)
	if !ok || err != nil {
		return 0, fmt.Errorf("%.100q is no /proc/PID/status with %s", status, line)
	}
	return n * kB, nil
}

// ResetPeak sets the peak memory of a process to its present memory.
func ResetPeak(pid int) error {
	const resetPeak = "5" // proc_pid_clear_refs(5)
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte(resetPeak), 0o200)
}
