package main

import (
	"fmt"
	"strings"
	"time"
)

// figures has the values of one screen: rates and latencies between two readings, and the state at
// the second reading.
type figures struct {
	*reading

	eventsUpRate, eventsDownRate float64 // per second
	proxyCPU, apiCPU             float64 // cores
	delivery, ack                histogram
}

func (r *reading) since(earlier *reading) figures {
	seconds := r.at.Sub(earlier.at).Seconds()
	return figures{
		reading:        r,
		eventsUpRate:   (r.eventsUp - earlier.eventsUp) / seconds,
		eventsDownRate: (r.eventsDown - earlier.eventsDown) / seconds,
		proxyCPU:       (r.proxy.cpu - earlier.proxy.cpu) / seconds,
		apiCPU:         (r.api.cpu - earlier.api.cpu) / seconds,
		delivery:       r.delivery.minus(earlier.delivery),
		ack:            r.ack.minus(earlier.ack),
	}
}

// cost has the apiserver's traffic and the processor time of the processes.
type cost struct{ seconds, cpu, proxyCPU, bytes, requests float64 }

// bill is the cost of informers.
type bill struct{ start, running cost }

func (r *reading) cost(earlier *reading) cost {
	return cost{
		seconds: r.at.Sub(earlier.at).Seconds(),
		cpu:     r.api.cpu - earlier.api.cpu, proxyCPU: r.proxy.cpu - earlier.proxy.cpu,
		bytes: r.apiBytes - earlier.apiBytes, requests: r.apiRequests - earlier.apiRequests,
	}
}

// rate returns the cost per second.
func (c cost) rate() cost {
	return cost{1, c.cpu / c.seconds, c.proxyCPU / c.seconds, c.bytes / c.seconds, c.requests / c.seconds}
}

// count writes a number with thousands separated.
func count[N int | int64 | float64](n N) string {
	digits := fmt.Sprintf("%.0f", float64(n))
	sign := ""
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	var groups []string
	for ; len(digits) > 3; digits = digits[:len(digits)-3] {
		groups = append([]string{digits[len(digits)-3:]}, groups...)
	}
	return sign + strings.Join(append([]string{digits}, groups...), ",")
}

func megabytes(bytes float64) string { return fmt.Sprintf("%.1f MB", bytes/1e6) }

func percent(cores float64) string { return fmt.Sprintf("%.0f %%", 100*cores) }

func quantile(h histogram, q float64) string {
	d := h.quantile(q)
	if d == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
