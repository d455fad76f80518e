//go:build verify

package chart

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// fault is something that goes wrong at three in the morning.
type fault struct {
	fires []string // the alerts that have to fire
	also  []string // alerts that may fire, too
	log   string   // the part of the proxy's log that explains the fault
	begin func(n *night)
}

// night is a proxy at which something goes wrong.
type night struct {
	*testing.T
	w      *world
	proxy  *cluster.Proxy
	way    *cluster.Relay // from the proxy to the apiserver
	inject func()         // causes the fault
	load   func()         // is called again and again after the fault; may be nil
}

// start starts the proxy. Its way to the apiserver can be cut.
func (n *night) start(settings string) {
	n.Helper()
	n.way = cluster.RelayT(n, n.w.api.Address)
	kubeconfig := n.w.api.KubeconfigT(n, "https://"+n.way.Address(), n.w.api.Token)
	n.proxy = cluster.ProxyT(n, cluster.ProxyOptions{Kubeconfig: kubeconfig, Settings: settings, TLS: true})
}

// Real proxies meet real faults. Before, no alert fires. After, those fire that should, no others,
// and the log has the line that explains the fault.
func TestGameDay(t *testing.T) {
	for name, f := range gameDay {
		t.Run(name, func(t *testing.T) {
			n := &night{T: t, w: sharedWorld(t)}
			f.begin(n)
			before := n.scrape()
			n.inject()
			first := n.scrape()
			var fire []string
			defer func() { t.Logf("%v fire", fire) }()
			cluster.Eventually(t, fmt.Sprintf("of all alerts but %v, just %v fire, and the log has %s", f.also, f.fires, f.log), func() bool {
				change := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "changed-"}} // feeds have news
				_, err := n.w.admin.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(t.Context(), change, metav1.CreateOptions{})
				must(t, err)
				const pause = 500 * time.Millisecond
				cluster.Pause(t.Context(), pause)
				if n.load != nil {
					n.load()
				}
				fire = slices.DeleteFunc(n.firing(before, first, n.scrape()), func(name string) bool { return slices.Contains(f.also, name) })
				return slices.Equal(fire, f.fires) && strings.Contains(n.proxy.Log(), f.log)
			})
		})
	}
}

// scrape is what Prometheus gets from a proxy.
type scrape struct {
	at      float64            // seconds, as in the metrics
	samples map[string]float64 // by series
}

func (n *night) scrape() scrape {
	s := scrape{float64(time.Now().UnixMilli()) / 1000, map[string]float64{}}
	text, err := n.proxy.Metrics(n.Context())
	up := "up 1\n"
	if err != nil {
		text, up = "", "up 0\n"
	}
	for line := range strings.Lines(up + string(text)) {
		series, text, _ := strings.Cut(line, " ")
		if end := strings.LastIndex(line, "} "); end >= 0 {
			series, text = line[:end], line[end+2:]
		}
		if value, err := strconv.ParseFloat(strings.TrimSpace(text), 64); err == nil && line[0] != '#' {
			name, labels, _ := strings.Cut(series, "{")
			s.samples[name+`{job="watchproxy",`+pod+","+labels+"}"] = value
		}
	}
	return s
}

// firing returns the alerts that fire within an hour after the fault if the proxy goes on as between
// the scrapes first and last. No alert may fire in the half hour before.
func (n *night) firing(before, first, last scrape) (all []string) {
	n.Helper()
	const quiet, end = 30, 90
	var text strings.Builder
	samples := maps.Clone(before.samples)
	maps.Copy(samples, last.samples)
	for series := range samples {
		fmt.Fprintf(&text, "\t\t%s %s %s\n", series, notation(series, before, before, 0, quiet), notation(series, first, last, quiet, end-quiet))
	}
	prometheus := newPrometheus(n.T, text.String())
	for _, r := range alerts(n.T) {
		for minute := range end {
			if len(prometheus.eval(n.T, r, time.Duration(minute)*time.Minute)) == 0 {
				continue
			}
			if minute < quiet {
				n.Fatalf("%s fires before anything has happened", r.Alert)
			}
			all = append(all, r.Alert)
			break
		}
	}
	return all
}

// notation returns a series for some minutes, as it went on between two scrapes: a counter
// grows, and so does a time, unless it stood still. All else stays as it was at last.
func notation(series string, first, last scrape, from, minutes int) string {
	value, ok := last.samples[series]
	if !ok {
		return fmt.Sprintf("stale _x%d", minutes-1)
	}
	name, _, _ := strings.Cut(series, "{")
	step := value - first.samples[series]
	switch {
	case strings.HasSuffix(name, "_timestamp_seconds") && value != 0:
		if value += float64(60*from) - last.at; step != 0 || first.at == last.at {
			step = 60
		}
	case !slices.ContainsFunc([]string{"_total", "_count", "_sum", "_bucket"}, func(end string) bool { return strings.HasSuffix(name, end) }):
		step = 0
	}
	return fmt.Sprintf("%f%+fx%d", value, step, minutes-1)
}
