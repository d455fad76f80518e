package cluster

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// MemoryOf returns the resident memory of a process and its peak, in bytes.
func MemoryOf(pid int) (resident, peak int64, err error) {
	if resident, err = sizeOf(pid, "VmRSS:"); err == nil {
		peak, err = sizeOf(pid, "VmHWM:")
	}
	return resident, peak, err
}

// ProgramOf returns the part of a process's resident memory that is mapped from the program's file,
// in bytes.
func ProgramOf(pid int) (int64, error) { return sizeOf(pid, "RssFile:") }

// sizeOf finds a size in /proc/PID/status (proc_pid_status(5)). The unit kB in that file means 1,024
// bytes.
func sizeOf(pid int, line string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("cannot read the memory of process %d: %w", pid, err)
	}
	const kB = 1 << 10
	_, rest, _ := strings.Cut(string(status), line)
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
