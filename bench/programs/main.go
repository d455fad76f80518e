// Command programs runs programs that people use at a cluster of 30,000 pods, directly and through
// watchproxy, and compares what they show and what they cost. `make clients` runs it.
//
// Each program runs once directly and twice through the proxy, whose caches are empty at first.
// Client-go's own checks are on: it compares each state that it has streamed with a list, and looks
// for changed objects in caches. Relays count the bytes; the apiserver counts the requests.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/watchproxy/watchproxy/bench/command"
	"github.com/watchproxy/watchproxy/bench/workload"
)

type options struct {
	pods       int
	watchproxy string
	report     string
}

func main() {
	var o options
	cmd := command.New("programs", "Run real programs directly and through watchproxy",
		`Starts kube-apiserver with etcd, fills it with pods, runs programs, and writes a table
with a row for each.`,
		o.validate, func(ctx context.Context) error { return run(ctx, &o) })
	flags := cmd.Flags()
	cmd.PersistentFlags().IntVar(&o.pods, "pods", 30_000, "`PODS` that there are")
	flags.StringVar(&o.report, "report", "/dev/stdout", "`FILE` for the table")
	command.ProxyFlag(cmd, &o.watchproxy)
	for name, work := range map[string]func(context.Context, int) error{"prometheus": discover, "otel": lookUp} {
		cmd.AddCommand(&cobra.Command{
			Use: name, Hidden: true, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return work(cmd.Context(), o.pods) },
		})
	}
	command.Run(cmd)
}

func (o *options) validate() error {
	var errs []error
	if o.pods < 1 {
		errs = append(errs, fmt.Errorf("--pods=%d: must be at least 1", o.pods))
	}
	if _, err := os.Stat(o.watchproxy); err != nil {
		errs = append(errs, fmt.Errorf("--watchproxy: %w (make build)", err))
	}
	return errors.Join(errs...)
}

func run(ctx context.Context, o *options) (err error) {
	w := &world{options: o}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.start(ctx); err != nil {
		return err
	}
	out, err := os.Create(o.report)
	if err != nil {
		return err
	}
	defer out.Close() //nolint:errcheck // what was printed is what counts
	fmt.Fprintf(out, "# Real programs at %d pods\n\n%s\n\n", o.pods, workload.Where(ctx))
	fmt.Fprint(out, "Each figure: directly; through the proxy with empty caches; again. The time is that until the first row.\n\n"+
		"| Program | First row, s | All, s | Received, MB | Requests at the apiserver | Rows | Differences |\n|---|---|---|---|---|---|---|\n")
	for i, p := range programs(w) {
		if i == 1 {
			if err := w.fill(ctx); err != nil {
				return err
			}
		}
		var found []outcome
		for _, r := range []*road{w.direct, w.through, w.through} {
			one := w.run(ctx, p, r)
			fmt.Fprintf(os.Stderr, "%s %s %s: %d rows after %v, %v\n", time.Now().Format(time.TimeOnly), p.name, r.name, len(one.rows), one.took, one.err)
			found = append(found, one)
		}
		fmt.Fprintln(out, row(p.name, found))
		for _, f := range found {
			if f.err != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", p.name, f.err))
			}
		}
	}
	return err
}

// row formats a row of the table.
func row(name string, found []outcome) string {
	var first, all, bytes, requests, rows, different string
	for i, f := range found {
		sep := ""
		if i > 0 {
			sep = "; "
		}
		first += fmt.Sprintf("%s%.2f", sep, f.first.Seconds())
		all += fmt.Sprintf("%s%.2f", sep, f.took.Seconds())
		bytes += fmt.Sprintf("%s%.1f", sep, float64(f.bytes)/1e6)
		requests += fmt.Sprintf("%s%.0f", sep, f.requests)
		rows += fmt.Sprintf("%s%d", sep, len(f.rows))
		if d := differing(found[0].rows, f.rows); i > 0 && len(d) > 0 {
			different += fmt.Sprintf("%s%d: %.200q", sep, len(d), d[0])
		}
	}
	if different == "" {
		different = "none"
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |", name, first, all, bytes, requests, rows, different)
}

// differing returns what only one of two sorted lists has.
func differing(a, b []string) (all []string) {
	for _, lists := range [][2][]string{{a, b}, {b, a}} {
		for _, row := range lists[0] {
			if _, found := slices.BinarySearch(lists[1], row); !found {
				all = append(all, row)
			}
		}
	}
	return all
}
