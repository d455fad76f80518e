// Command load measures what reads cost: at kube-apiserver, through watchproxy, and at a floor, which is what it costs to
// send the same bytes without knowing anything about them. It is what make bench runs.
//
// All servers run on one machine, in one run, and are asked the same in turn. What is compared is the processor time that
// a server takes for a unit of work, user and system (proc_pid_stat(5)); clients are other processes' business and are not
// counted. Times on the clock depend on what else the machine does, and are given for delays only.
//
// The floor of lists is nginx, which sends them as static files, compressed ones by gzip_static. That of watches is a
// program which writes ready frames to every connection (floor.go).
package main
