// Command compat runs the differential suite, the watch validator, syncs and the short set of
// faults against several versions of kube-apiserver, each with the proxy in front. It compares the
// rows that fail with the known differences (known.yaml), and writes a table.
//
// It fails if a row fails that no known difference explains, or if a known difference does not
// occur any more.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/command"
)

// suites are the tests that run for each version, as arguments of go test. Of the faults, these are
// the short set.
var suites = [][]string{{"./bench/conformance"}, {"./bench/faults", "-run", "^TestFaults$"}}

// difference is a known difference: rows that fail with some versions, and why.
type difference struct {
	Versions []string `json:"versions"` // minors, such as v1.33
	Rows     string   `json:"rows"`     // a regular expression for the whole names
	Why      string   `json:"why"`

	rows *regexp.Regexp
}

//go:embed known.yaml
var knownYAML []byte

func known() (all []difference, err error) {
	if err := yaml.UnmarshalStrict(knownYAML, &all); err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].rows, err = regexp.Compile("^(?:" + all[i].Rows + ")$"); err != nil {
			return nil, err
		}
	}
	return all, nil
}

type compat struct {
	versions []string
	report   string
}

func main() {
	c := &compat{}
	cmd := command.New("compat", "Run the differential suite against several versions of kube-apiserver", "", c.valid, c.run)
	cmd.Flags().StringSliceVar(&c.versions, "versions", nil, "`VERSIONS` of bin/kubeapi-VERSION, such as v1.37.2; oldest first")
	cmd.Flags().StringVar(&c.report, "report", "", "`FILE` to write the table to")
	command.Run(cmd)
}

func (c *compat) valid() error {
	if len(c.versions) == 0 {
		return errors.New("--versions is empty")
	}
	return nil
}

func (c *compat) run(ctx context.Context) error {
	differences, err := known()
	if err != nil {
		return fmt.Errorf("known.yaml: %w", err)
	}
	var table, reasons bytes.Buffer
	fmt.Fprint(&table, "| kube-apiserver | rows equal | rows that differ | not explained | skipped |\n|---|---|---|---|---|\n")
	var failed []error
	for _, version := range c.versions {
		o, err := test(ctx, version)
		if err = errors.Join(ctx.Err(), err); err != nil {
			return fmt.Errorf("%s: %w", version, err)
		}
		if broken := o.broken(); broken != "" {
			failed = append(failed, fmt.Errorf("%s: a failure beside the rows: %s", version, broken))
		}
		explained, unknown, stale := explain(version, o.rows("fail"), differences)
		count := 0
		for _, d := range explained {
			count += len(d.rows)
			fmt.Fprintf(&reasons, "- %s, %d rows: %s\n", version, len(d.rows), d.why)
		}
		fmt.Fprintf(&table, "| %s | %d | %d | %d | %d |\n", version, len(o.rows("pass")), count, len(unknown), len(o.rows("skip")))
		for _, name := range unknown {
			failed = append(failed, fmt.Errorf("%s: %s differs:\n%s", version, name, o.output[name]))
		}
		for _, why := range stale {
			failed = append(failed, fmt.Errorf("%s: known.yaml explains rows that are equal: %s", version, why))
		}
	}
	text := fmt.Sprintf("%s, `make compat`: %s, with the proxy in front of each version. "+
		"Watches that kube-apiserver 1.37 compresses are compared after decompression.\n\n%s\n%s", time.Now().Format(time.DateOnly), strings.Join(slices.Concat(suites...), " "), &table, &reasons)
	fmt.Print(text)
	if c.report != "" {
		if err := os.WriteFile(c.report, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return errors.Join(failed...)
}

// test runs the suites against one version.
func test(ctx context.Context, version string) (outcomes, error) {
	all := outcomes{map[string]string{}, map[string]string{}}
	for _, suite := range suites {
		o, err := run(ctx, version, suite)
		if err != nil {
			return all, err
		}
		maps.Copy(all.results, o.results)
		maps.Copy(all.output, o.output)
	}
	return all, nil
}

func run(ctx context.Context, version string, suite []string) (outcomes, error) {
	binary := filepath.Join(cluster.Root(), "bin", "kubeapi-"+version)
	if _, err := os.Stat(binary); err != nil {
		return outcomes{}, fmt.Errorf("%w: make bin/kubeapi-%s", err, version)
	}
	fmt.Fprintf(os.Stderr, "compat: testing with %s\n", version)
	args := []string{"test", "-json", "-tags", "grpcnotrace,verify", "-count", "1", "-shuffle", "on", "-timeout", "30m", "-p", "1"}
	cmd := exec.CommandContext(ctx, "go", append(args, suite...)...)
	cmd.Dir = cluster.Root()
	cmd.Env = append(os.Environ(), "WATCHPROXY_KUBEAPI="+binary)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that the tests end their servers
	cmd.WaitDelay = time.Minute
	out, err := cmd.StdoutPipe()
	if err != nil {
		return outcomes{}, err
	}
	if err := cmd.Start(); err != nil {
		return outcomes{}, err
	}
	o, err := read(out)
	if ended := cmd.Wait(); err == nil && ended != nil && len(o.rows("fail")) == 0 {
		err = ended
	}
	return o, err
}

// explanation is a difference that has occurred.
type explanation struct {
	why  string
	rows []string
}

// explain sorts the rows that fail with a version: those of known differences, and the others. The
// last result has the known differences that no row shows.
func explain(version string, rows []string, differences []difference) (explained []explanation, unknown, stale []string) {
	minor := version[:strings.LastIndexByte(version, '.')]
	unknown = rows
	for _, d := range differences {
		if !slices.Contains(d.Versions, minor) {
			continue
		}
		e := explanation{why: d.Why}
		unknown = slices.DeleteFunc(slices.Clone(unknown), func(name string) bool {
			if !d.rows.MatchString(name) {
				return false
			}
			e.rows = append(e.rows, name)
			return true
		})
		if len(e.rows) == 0 {
			stale = append(stale, d.Why)
			continue
		}
		explained = append(explained, e)
	}
	return explained, unknown, stale
}
