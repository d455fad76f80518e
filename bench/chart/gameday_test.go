//go:build verify

package chart

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/teststorage"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

var faultsDrawn = flag.Int("faults", 3, "how many faults TestGameDay injects, drawn by -seed")

// fault is something that goes wrong at three in the morning.
type fault struct {
	fires []string // the alerts that have to fire
	also  []string // alerts that may fire, too
	log   string   // the part of the proxy's log that explains the fault
	// begin starts a proxy. inject causes the fault, and load is called each second.
	begin func(t *testing.T, w *world) situation
}

type situation struct {
	proxy  *cluster.Proxy
	inject func()
	load   func() // may be nil
}

// A proxy is scraped each second, and for Prometheus a minute passes. So an alert that waits for ten
// minutes fires after ten seconds, and rates are a sixtieth of what they are.
const pace = 60

// Real proxies meet real faults. Before, no alert fires. After, those fire that should, no others,
// and the log has the line that explains the fault.
func TestGameDay(t *testing.T) {
	names := slices.Sorted(maps.Keys(gameDay))
	rand.New(rand.NewPCG(cluster.Seed(), 0)).Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:min(*faultsDrawn, len(names))] {
		t.Run(name, func(t *testing.T) { gameDay[name].run(t) })
	}
}

func (f fault) run(t *testing.T) {
	const before, longest = 6, 90 // seconds
	s := f.begin(t, sharedWorld(t))
	g := newScraped(t, s.proxy)
	due := slices.Clone(f.fires)
	for second := range longest {
		if second == before {
			s.inject()
		}
		if s.load != nil {
			s.load()
		}
		for _, name := range g.minute(t) {
			switch at := slices.Index(due, name); {
			case second < before:
				t.Fatalf("%s fires before anything has happened", name)
			case at >= 0:
				due = slices.Delete(due, at, at+1)
				t.Logf("%s fires %d minutes after the fault", name, second-before)
			case !slices.Contains(f.fires, name) && !slices.Contains(f.also, name):
				t.Fatalf("%s fires", name)
			}
		}
		if len(due) == 0 && strings.Contains(s.proxy.Log(), f.log) {
			return
		}
	}
	if len(due) > 0 {
		t.Errorf("%v do not fire", due)
	}
	if !strings.Contains(s.proxy.Log(), f.log) {
		t.Errorf("the log has no %s", f.log)
	}
}

// scraped is a Prometheus that scrapes a proxy.
type scraped struct {
	proxy   *cluster.Proxy
	series  *teststorage.TestStorage
	engine  *engine
	rules   []rulefmt.Rule
	began   time.Time
	minutes int
	last    map[string]labels.Labels // the series of the last scrape
}

func newScraped(t *testing.T, p *cluster.Proxy) *scraped {
	t.Helper()
	series := teststorage.New(t)
	return &scraped{proxy: p, series: series, engine: newEngine(t, series), rules: alerts(t), began: time.Now()}
}

// minute scrapes the proxy and returns the alerts that fire. It takes the rest of the second.
func (g *scraped) minute(t *testing.T) (firing []string) {
	t.Helper()
	time.Sleep(time.Until(g.began.Add(time.Duration(g.minutes) * time.Second)))
	at := time.Duration(g.minutes) * time.Minute
	g.minutes++
	text, err := g.proxy.Metrics(t.Context())
	if err != nil {
		text = "" // up is 0
	}
	if err := g.add(t, string(text), at); err != nil {
		t.Fatal(err)
	}
	for _, r := range g.rules {
		if len(g.engine.eval(t, r, at)) > 0 {
			firing = append(firing, r.Alert)
		}
	}
	return firing
}

// add stores the samples of a scrape. Series that it does not have any more become stale.
func (g *scraped) add(t *testing.T, text string, at time.Duration) error {
	t.Helper()
	app := g.series.Appender(t.Context())
	now := map[string]labels.Labels{}
	put := func(l labels.Labels, v float64) error {
		now[l.String()] = l
		_, err := app.Append(0, l, at.Milliseconds(), v)
		return err
	}
	scrape := labels.FromStrings("job", "watchproxy", "namespace", "ns", "pod", "p", "instance", "a")
	up := labels.NewBuilder(scrape).Set(labels.MetricName, "up").Labels()
	if text == "" {
		return errors.Join(put(up, 0), g.stale(app, now, at), app.Commit())
	}
	errs := []error{put(up, 1)}
	for p := textparse.NewPromParser([]byte(text), labels.NewSymbolTable(), false); ; {
		entry, err := p.Next()
		if err == io.EOF { //nolint:errorlint // the parser does not wrap it
			break
		}
		if err != nil {
			return fmt.Errorf("the proxy's metrics: %w", err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var l labels.Labels
		p.Labels(&l)
		_, _, v := p.Series()
		if strings.HasSuffix(l.Get(labels.MetricName), "_timestamp_seconds") && v != 0 {
			v = (v - float64(g.began.UnixNano())/1e9) * pace
		}
		all := labels.NewBuilder(l)
		scrape.Range(func(s labels.Label) { all.Set(s.Name, s.Value) })
		errs = append(errs, put(all.Labels(), v))
	}
	return errors.Join(append(errs, g.stale(app, now, at), app.Commit())...)
}

func (g *scraped) stale(app storage.Appender, now map[string]labels.Labels, at time.Duration) (err error) {
	for name, l := range g.last {
		if _, ok := now[name]; !ok {
			_, each := app.Append(0, l, at.Milliseconds(), math.Float64frombits(value.StaleNaN))
			err = errors.Join(err, each)
		}
	}
	g.last = now
	return err
}
