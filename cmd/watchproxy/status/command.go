package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/watchproxy/watchproxy/cmd/watchproxy/command"
	"github.com/watchproxy/watchproxy/config"
)

const (
	timeout   = 10 * time.Second
	maxBytes  = 64 << 20 // a feed has some 500
	maxReason = 4 << 10  // why a request is refused
	interval  = time.Second
)

type flags struct {
	admin  string
	output command.Format
	watch  bool
	check  bool
	tree   bool
}

// Command returns the command status.
func Command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "status [--tree URL ...]",
		Short: "Show the caches of a running proxy and what they save",
		Long: `status shows the feeds of a running proxy, its memory, and what it saves
upstream. The hit ratio covers gets, lists and watches of resources. Saved is
the time that upstream would have taken for lists of the most recent state, estimated
from lists that it answered, less its time for the proofs; the bytes of responses from
the cache; and the requests that upstream would have got without the proxy, less those
that the proxy sent. Forwarded is what upstream answered in the last five minutes,
and why. All other figures count since the proxy's start.

--check is for scripts. It exits with 0 if the proxy is healthy, and else with 1 and a
reason in each line. A healthy proxy answers at its admin address, is ready (neither
starting nor draining), serves with its current configuration file, reaches upstream,
and none of its feeds has lost upstream for more than 10 seconds. A feed may still be
syncing: requests for its resource wait or are forwarded.

--tree URL ... shows several proxies by their admin addresses (--admin is one of them),
each below the proxy that is its upstream. The lag is that from the arrival of an event at a proxy until it is
written to a client, which may be the next proxy.`,
		Example: `  watchproxy status --watch
  watchproxy status --check || echo "look after the proxy"
  watchproxy status -o yaml
  watchproxy status --tree http://10.0.0.1:8002 http://10.0.1.1:8002 http://10.0.1.2:8002`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.tree {
				return nil
			}
			return cobra.NoArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.tree {
				if cmd.Flags().Changed("admin") || len(args) == 0 {
					args = append(args, f.admin)
				}
				admins, err := adminURLs(args)
				if err != nil {
					return err
				}
				return printTree(cmd.Context(), admins, cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			base, err := adminURL(f.admin)
			if err != nil {
				return err
			}
			if f.watch {
				f.follow(cmd.Context(), base, cmd.OutOrStdout(), cmd.ErrOrStderr())
				return nil
			}
			s, err := fetch(cmd.Context(), base)
			if err != nil {
				return err
			}
			if f.check {
				return report(cmd.Context(), base, s, cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			return f.print(cmd.OutOrStdout(), s)
		},
	}
	set := cmd.Flags()
	set.StringVar(&f.admin, "admin", "http://"+config.Default().AdminListen, "`URL` of the proxy's admin address")
	set.BoolVarP(&f.watch, "watch", "w", false, "refresh once a second until interrupted")
	set.BoolVar(&f.check, "check", false, "only tell whether the proxy is healthy, by the exit code")
	set.BoolVar(&f.tree, "tree", false, "show the proxies at several admin addresses, each below its upstream")
	f.output.AddFlag(set)
	for _, other := range []string{"check", "watch", "output"} {
		cmd.MarkFlagsMutuallyExclusive("tree", other)
	}
	cmd.MarkFlagsMutuallyExclusive("check", "watch")
	cmd.MarkFlagsMutuallyExclusive("check", "output")
	return cmd
}

func adminURL(admin string) (string, error) {
	text := admin
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", command.Misused("--admin %q: must be the URL of a proxy's admin address, as in http://127.0.0.1:8002", admin)
	}
	return strings.TrimSuffix(u.String(), "/"), nil
}

// get requests a path of the admin address. It returns the response and its body, of which it reads
// only the beginning if the status is not 200. Errors say what to check.
func get(ctx context.Context, base, path string) (resp *http.Response, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, http.NoBody)
	if err != nil {
		return nil, nil, err
	}
	resp, err = http.DefaultClient.Do(req)
	if err == nil {
		defer resp.Body.Close() //nolint:errcheck // only read
		limit := int64(maxBytes)
		if resp.StatusCode != http.StatusOK {
			limit = maxReason
		}
		body, err = io.ReadAll(io.LimitReader(resp.Body, limit))
	}
	if err != nil {
		var why net.Error
		if errors.As(err, &why) && why.Timeout() {
			err = fmt.Errorf("no answer within %s", timeout)
		}
		return nil, nil, fmt.Errorf("admin address %s cannot be reached: %w; check that the proxy runs, and that --admin names its adminListen, which it prints at start (in a cluster: kubectl port-forward)", base, err)
	}
	return resp, body, nil
}

// fetch gets the status of a proxy.
func fetch(ctx context.Context, base string) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp, body, err := get(ctx, base, "/status")
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden {
		return nil, fmt.Errorf("%s refuses to show its status: %s; ask on a loopback address (in a cluster: kubectl port-forward)", base, bytes.TrimSpace(body))
	}
	var s Status
	err = json.Unmarshal(body, &s)
	if resp.StatusCode != http.StatusOK || err != nil || s.Upstream == "" {
		return nil, fmt.Errorf("%s answers %s, but not as the admin address of a proxy; check that --admin names adminListen and not listen", base, resp.Status)
	}
	return &s, nil
}

// follow prints the status periodically until ctx ends. If the proxy does not respond, follow
// prints that and tries again.
func (f *flags) follow(ctx context.Context, base string, stdout, stderr io.Writer) {
	wipe := ""
	if f.output == command.Text && isTerminal(stdout) {
		wipe = "\x1b[H\x1b[2J"
	}
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for {
		s, err := fetch(ctx, base)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			fmt.Fprint(stdout, wipe)
			err = f.print(stdout, s)
		}
		if err != nil {
			fmt.Fprintln(stderr, "watchproxy:", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		if f.output == command.Text && wipe == "" {
			fmt.Fprintln(stdout)
		}
	}
}

func (f *flags) print(w io.Writer, s *Status) error {
	if f.output == command.Text {
		return s.writeText(w)
	}
	return f.output.Print(w, s, f.watch)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}
