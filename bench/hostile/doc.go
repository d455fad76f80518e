// Package hostile attacks the proxy as its clients could and looks at what everybody else notices.
//
// One proxy has the chart's limits: 1 GiB of memory, two processors, TLS and delegated
// authentication. Two more are there for a few rows: one on loopback without authentication, for
// pages in a browser, and one with few file descriptors. Behind all of them is one real apiserver.
//
// A row of the table is one behaviour (see behaviour). Its clients have no credentials, or those of
// the user attacker, who may use one namespace. Each row is paced and bounded in number and time,
// and begins when the proxy has recovered from the row before it. Meanwhile another process is the
// victim: it reads pods from the cache at a steady rate and holds a watch open over the whole run.
//
// A row fails if the proxy exceeds its memory limit or ends, if a request of the victim fails or
// its watch ends or has a gap, if an answer is one that the row forbids, or if goroutines,
// descriptors, connections, watches or heap do not return to where they were once the attackers
// have left. The victim's latency is reported, not judged: it depends on the machine.
//
// Attackers, victim, proxy and apiserver share the machine. The test process, which is all of the
// attackers, uses one processor. It and the apiserver run only when no others want to, as a proxy has
// processors of its own in life. At length a row begins when the apiserver has done what the row
// before left it with. The table shows the processor time of each, so that a slow victim
// can be told from a busy machine.
//
// `make test` runs each row for less than a second: its latencies are of few reads. `make hostile`
// runs each for 10 seconds with more clients and writes bench/results/hostile.md.
package hostile
