package table

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// podRow returns a pod and its row. last is the last state of its containers.
func podRow(restarts, last string) (pod, row []byte) {
	variables := strings.TrimSuffix(strings.Repeat(`{"name":"VARIABLE","value":"some value of a variable"},`, 40), ",")
	status := `{"name":"c","state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}},"lastState":{` + last + `},"ready":true}`
	pod = fmt.Appendf(nil, `{"metadata":{"name":"p","creationTimestamp":%q},"spec":{"containers":[{"name":"c","env":[%s]}]},"status":{"containerStatuses":[%s,%s]}}`,
		ago(4*day), variables, status, status)
	row = fmt.Appendf(nil, `{"cells":["p","2/2","Running",%q,"4d","10.128.12.1","node-1","<none>","<none>"],"conditions":[{"type":"Completed","status":"True","reason":"Succeeded","message":"The pod has completed successfully."}]`, restarts)
	return pod, row
}

var podRules = rulesFor("", "pods", "Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates")

// BenchmarkRow measures the time for the cells of one pod.
func BenchmarkRow(b *testing.B) {
	for name, c := range map[string]struct{ restarts, last string }{
		"restarts=0": {"0", ""},
		"restarts=3": {"3 (5h ago)", `"terminated":{"finishedAt":"` + ago(5*time.Hour) + `"}`},
	} {
		pod, row := podRow(c.restarts, c.last)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var dst []byte
			for b.Loop() {
				var err error
				if dst, _, _, err = podRules.appendRow(dst[:0], row, pod, now, now.Add(time.Minute)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
