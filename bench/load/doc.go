// Command load measures what reads cost: at kube-apiserver, through watchproxy, and at a floor, which is what it costs to
// send the same bytes without knowing anything about them. It is what make bench runs.
//
// All servers run on one machine, in one run, and are asked the same in turn. What is compared is the processor time that
// a server takes for a unit of work, user and system (proc_pid_stat(5)); clients are another process's business and are not
// counted. Times on the clock depend on what else the machine does, and are given for delays only. What the clients of a
// fan-out take stands beside them: all have to read before the last has, and the processors are the servers' as well.
//
// Where there is perf(1), one round more shows what a delivery to 1,000 consists of, ours and the floor's (perf.go).
//
// The floor of lists is nginx, which sends them as static files, compressed ones by gzip_static. That of watches is a
// program which writes ready frames to every connection (floor.go), that of forwarding nginx again, and for comparison what
// net/http's ReverseProxy adds (gateway.go).
//
// The floor of watches once read its frames from a pipe that blocked a thread, which keeps Go's monitor awake: without a
// single watch it took 1.5 to 2 ms a frame, and as what writes take without watches is taken off, it seemed to deliver to
// a thousand for 1.5 to 2 µs less than it does.
package main
