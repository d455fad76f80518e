package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
)

// version and commit are set at link time. Go's own version, the default, contains the commit.
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
	if info != nil && info.Main.Version != "(devel)" {
		version = cmp.Or(version, info.Main.Version)
	}
	platform := runtime.GOOS + "/" + runtime.GOARCH
	return build{cmp.Or(version, "dev"), commit, runtime.Version(), platform}
}

func (b build) metric() prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "watchproxy_build_info",
		Help: "Always 1; the labels tell the version, the commit and the version of Go " +
			"that the binary was built with.",
		ConstLabels: prometheus.Labels{"version": b.Version, "commit": b.Commit, "goversion": b.Go},
	})
	info.Set(1)
	return info
}

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
