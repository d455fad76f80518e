// Package hostile attacks the proxy as its clients could, and measures the effect on other users.
//
// One proxy has the chart's limits: 1 GiB of memory, two processors, TLS and delegated
// authentication. A few rows use two more proxies: one on loopback without authentication, for
// pages in a browser, and one with few file descriptors. All proxies share one real apiserver.
//
// A row of the table is one behaviour (see behaviour). Its clients have no credentials, or those of
// the user attacker, who may use one namespace. Each row has bounds on its pace, number and time.
// It begins when the proxy has recovered from the row before it. Meanwhile another process is the
// victim: it reads pods from the cache at a steady rate and holds a watch open over the whole run.
//
// A row fails if:
//
//   - the proxy exceeds its memory limit, or ends
//   - a request of the victim fails, or its watch ends or has a gap
//   - an answer is one that the row forbids
//   - goroutines, descriptors, connections, watches or heap do not return to their old values after
//     the attackers have left
//
// The victim's latency is reported, not judged, because it depends on the machine.
//
// Attackers, victim, proxy and apiserver share the machine. In production a proxy has processors of
// its own. So the test process, which runs all attackers, uses one processor, and it and the
// apiserver run only when no other process wants to. In a long run (`make hostile`), a row begins
// after the apiserver has finished the work from the row before it. The table shows the processor
// time of each process, to distinguish a slow victim from a busy machine.
//
// `make test` runs each row for less than a second, so its latencies are of few reads. `make
// hostile` runs each row for 10 seconds with more clients and writes bench/results/hostile.md.
package hostile
