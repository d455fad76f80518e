//go:build !race

package table

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// podRow returns a pod that has not restarted, and its row.
func podRow() (pod, row []byte) {
	variables := strings.TrimSuffix(strings.Repeat(`{"name":"VARIABLE","value":"some value of a variable"},`, 40), ",")
	status := `{"name":"c","state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}},"lastState":{},"ready":true}`
	pod = fmt.Appendf(nil, `{"metadata":{"name":"p","creationTimestamp":%q},"spec":{"containers":[{"name":"c","env":[%s]}]},"status":{"containerStatuses":[%s,%s]}}`,
		ago(4*day), variables, status, status)
	row = []byte(`{"cells":["p","2/2","Running","0","4d","10.128.12.1","node-1","<none>","<none>"],"conditions":[{"type":"Completed","status":"True","reason":"Succeeded","message":"The pod has completed successfully."}]`)
	return pod, row
}

var podRules = rulesFor("", "pods", "Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates")

// A pod that has not restarted costs only its age. The most that can be allocated is far below one
// attempt to explain a text.
func TestAllocationsOfARow(t *testing.T) {
	const most = 40
	pod, row := podRow()
	var dst []byte
	allocated := testing.AllocsPerRun(100, func() {
		var err error
		if dst, _, _, err = podRules.appendRow(dst[:0], row, pod, now, now.Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	})
	if allocated > most {
		t.Errorf("%v allocations, at most %d are allowed", allocated, most)
	}
}
