package cluster

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPU returns the processor time that the server, including etcd, has used since its last start, to
// a hundredth of a second. Unlike a read of the metrics, this costs the server nothing.
func (s *APIServer) CPU() (time.Duration, error) {
	if s.process == nil {
		return 0, fmt.Errorf("the apiserver at %s is not running", s.URL)
	}
	return CPUOf(s.PID())
}

// CPU returns the processor time that the proxy has used since its last start, to a hundredth of a
// second.
func (p *Proxy) CPU() (time.Duration, error) { return CPUOf(p.PID()) }

// CPUOf returns the processor time that a process has used, to a hundredth of a second.
func CPUOf(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("cannot read the processor time of process %d: %w", pid, err)
	}
	return parseStat(string(stat))
}

// tick is the unit of times in /proc/PID/stat (proc_pid_stat(5)). USER_HZ is 100 on every Linux
// that Go supports.
const tick = 10 * time.Millisecond

// Indexes of the fields after the command's name in /proc/PID/stat, counted from 0.
const utime, stime = 11, 12

// parseStat adds up the two times. The command's name before them is in parentheses and may contain
// any character.
func parseStat(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) <= stime {
		return 0, fmt.Errorf("%q is no /proc/PID/stat", stat)
	}
	var ticks int64
	for _, field := range []int{utime, stime} {
		n, err := strconv.ParseInt(fields[field], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%q is no /proc/PID/stat: %w", stat, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}
