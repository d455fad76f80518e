// Package hostile attacks the proxy as its clients could, and measures the effect on other users.
//
// The proxy has the chart's limits: 1 GiB of memory, two processors, TLS and delegated
// authentication. Other packages test clients that send or read slowly (proxy, proxy/h2, proxy/conn),
// requests that are too large or broken (proxy, bench/clients/wire, bench/access), late watches and
// upgrades (proxy), pages of other sites (proxy, bench/page) and a lack of file descriptors
// (cmd/watchproxy).
//
// A row of the table is one behaviour (see behaviour). Its clients have no credentials, or
// those of the user attacker. This user may use one namespace. Each row limits the pace and number
// of its clients, and its own duration. A row begins when the proxy has recovered from the previous
// row. Meanwhile another process is the victim: it reads pods from the cache at a steady rate and
// holds a watch open over the whole run.
//
// A row fails if:
//
//   - the proxy exceeds its memory limit, or ends
//   - a request of the victim fails, its watch ends or has a gap, or the victim reads nothing
//   - the attackers receive a response that the row forbids
//   - the attackers send too few requests, or the row's own check at the end fails
//   - goroutines, descriptors, connections, watches or heap (within 48 MiB) do not return to their
//     old values after the attackers have left
//
// TestTogether runs all behaviours at the same time, against a proxy with 256 MiB: a minute in `make
// verify`, or longer with -together.
//
// The victim's latency is reported without a limit, because it depends on the machine.
//
// Attackers, victim, proxy and apiserver share the machine. In production a proxy has its own
// processors. So the test process, which runs all attackers, uses one processor. In a long run
// (`make hostile`), the test process and the apiserver run only when no other process needs the
// processors, and a row begins after the apiserver has finished the work from the previous row. The
// table shows the processor time of each process, so that a slow victim can be distinguished from a
// busy machine.
//
// `make verify` runs each row for less than a second, so its latencies are from few reads. `make
// hostile` runs each row for 10 seconds with more clients and writes bench/results/hostile.md.
package hostile
