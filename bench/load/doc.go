// Command load measures the cost of reads: at kube-apiserver, through watchproxy, and at a minimal
// server, the floor. The floor sends the same bytes without parsing them. `make bench` runs this
// command.
//
// All servers run on one machine, in one run, and receive the same requests in turn. The bench
// compares the processor time, user and system, that a server needs for a unit of work
// (proc_pid_stat(5)). Clients run in another process and do not count. Wall-clock times depend on
// the rest of the machine, so the report has them only for delays. The report also shows the
// processor time of a fan-out's clients. They share the servers' processors, and the slowest client
// determines the longest delay.
//
// If perf(1) is available, one more round shows the parts of a delivery to 1,000 watches, for the
// proxy and for the floor (perf.go).
//
// The floor of lists is nginx, which sends lists as static files, and compressed lists by
// gzip_static. The floor of watches is a program that writes prepared frames to every connection
// (floor.go). The floor of forwarding is again nginx. For comparison, the bench also measures
// net/http's ReverseProxy (gateway.go).
//
// The floor of watches reads its frames without blocking a thread. Otherwise Go's monitor would
// stay awake, and a frame would cost 1.5 to 2 ms even without any watch. The bench subtracts the
// cost of writes without watches. So each delivery to 1,000 watches would appear 1.5 to 2 µs
// cheaper than it is.
package main
