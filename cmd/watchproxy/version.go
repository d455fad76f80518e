package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
)

// version and commit are set at link time. Without them, Go's build information is used.
var version, commit string

// build describes this binary.
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

// describe uses the version and the commit set at link time, or else those of Go's build
// information.
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

// metric returns a gauge that is always 1 and has the build in its labels, as Kubernetes components
// do.
func (b build) metric() prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "watchproxy_build_info",
		Help:        "Always 1; the labels tell the version, the commit and the version of Go that the binary was built with.",
		ConstLabels: prometheus.Labels{"version": b.Version, "commit": b.Commit, "goversion": b.Go},
	})
	info.Set(1)
	return info
}

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print version, commit, Go version and platform",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := buildOf()
			switch output {
			case "json":
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(b)
			case "":
				known := ""
				if b.Commit != "" {
					known = "commit " + b.Commit + ", "
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "watchproxy %s (%s%s, %s)\n", b.Version, known, b.Go, b.Platform)
				return err
			}
			return fmt.Errorf("--output %q: must be json, or not given", output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "`FORMAT`: json (default: text)")
	return cmd
}
