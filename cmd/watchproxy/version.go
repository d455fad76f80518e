package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
)

// version and commit are set at link time. Without them, Go's build information is used.
var version, commit string

type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"` // empty if unknown
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

var buildOf = sync.OnceValue(func() build {
	info, _ := debug.ReadBuildInfo()
	return describe(version, commit, info)
})

func describe(version, commit string, info *debug.BuildInfo) build {
	b := build{Version: version, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info != nil && b.Version == "" && info.Main.Version != "(devel)" {
		b.Version = info.Main.Version
	}
	if info != nil && b.Commit == "" {
		var modified bool
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				modified = s.Value == "true"
			}
		}
		if modified && b.Commit != "" {
			b.Commit += "-dirty"
		}
	}
	if b.Version == "" {
		b.Version = "dev"
	}
	return b
}

// metric returns a gauge that is always 1 and has the build in its labels, like the build_info
// metrics of Kubernetes components.
func (b build) metric() prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "watchproxy_build_info",
		Help:        "Always 1; the labels tell the version, the commit and the version of Go that the binary was built with.",
		ConstLabels: prometheus.Labels{"version": b.Version, "commit": b.Commit, "goversion": b.Go},
	})
	info.Set(1)
	return info
}

// String describes the build in one line.
func (b build) String() string {
	known := ""
	if b.Commit != "" {
		known = "commit " + b.Commit + ", "
	}
	return fmt.Sprintf("watchproxy version %s (%s%s, %s)", b.Version, known, b.Go, b.Platform)
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print version, commit, Go version and platform",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), buildOf())
			return err
		},
	}
}
