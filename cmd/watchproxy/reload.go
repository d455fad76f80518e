package main

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/watchproxy/watchproxy/config"
)

// reloader applies changes of the configuration file while the proxy runs. If the file has an
// error, or a change that needs a restart, reloader refuses the whole file.
type reloader struct {
	file    string // empty if there is no file that can be read again
	known   []byte // the file's content at the last load, or nil if it could not be read
	parse   func(text []byte) (*config.ProxyConfiguration, error)
	hangups <-chan os.Signal
	running *config.ProxyConfiguration
	apply   func(*config.ProxyConfiguration)
	log     *zap.Logger
	refused prometheus.Gauge
}

func newRefusedGauge(r prometheus.Registerer) prometheus.Gauge {
	return promauto.With(r).NewGauge(prometheus.GaugeOpts{
		Name: "watchproxy_config_refused",
		Help: "1 if the configuration file is not in effect as it is, since it was refused, " +
			"else 0.",
	})
}

// lookForChanges is the interval between reads. The kubelet updates a ConfigMap in about a minute.
const lookForChanges = 5 * time.Second

// hangups catches SIGHUP, so that it never ends the process, and keeps one for a later reader.
func hangups() <-chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	return signals
}

func (r *reloader) run(ctx context.Context) {
	tick := time.NewTicker(lookForChanges)
	defer tick.Stop()
	pending := r.known
	for {
		asked := false
		select {
		case <-r.hangups:
			asked = true
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if r.file == "" {
			if asked {
				r.log.Info("there is no configuration file to read again")
			}
			continue
		}
		now, err := os.ReadFile(r.file)
		// A file that is being replaced may be missing for a moment.
		if !asked && (err != nil || r.known != nil && bytes.Equal(now, r.known)) {
			continue
		}
		// The file may be half written: load it once two reads are equal.
		if !asked && !bytes.Equal(now, pending) {
			pending = now
			continue
		}
		if err != nil {
			r.known = nil
			r.refuse("configuration is not reloaded, all stays as it was", zap.Error(err))
			continue
		}
		r.known = now
		r.reload(now)
	}
}

func (r *reloader) reload(text []byte) {
	wanted, err := r.parse(text)
	if err != nil {
		r.refuse("configuration is not reloaded, all stays as it was", zap.Error(err))
		return
	}
	if fixed := config.Fixed(r.running, wanted); len(fixed) > 0 {
		r.refuse("configuration is not reloaded, all stays as it was: restart watchproxy for "+
			"what cannot change while it runs",
			zap.String("fields", strings.Join(fixed, ", ")))
		return
	}
	r.apply(wanted)
	r.running = wanted
	r.refused.Set(0)
	r.log.Info("configuration reloaded", zap.String("file", r.file))
}

func (r *reloader) refuse(why string, field zapcore.Field) {
	r.refused.Set(1)
	r.log.Error(why, zap.String("file", r.file), field)
}

func logLevel(name string) zapcore.Level {
	l, err := zapcore.ParseLevel(name)
	if err != nil {
		panic("BUG: logLevel: " + err.Error())
	}
	return l
}
