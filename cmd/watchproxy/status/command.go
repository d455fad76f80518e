package status

import (
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

	"github.com/watchproxy/watchproxy/config"
)

const (
	timeout  = 10 * time.Second
	maxBytes = 64 << 20 // a feed takes some 500
	interval = time.Second
)

type flags struct {
	admin, output string
	watch         bool
}

// Command returns the command status.
func Command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the caches of a running proxy and the requests that they save",
		Long: `status shows the feeds of a running proxy, its memory, and the requests that it
saves upstream. The hit ratio covers gets, lists and watches of resources. Saved is
the number of requests that upstream would have got without the proxy, less those
that the proxy sent. Forwarded is what upstream answered in the last five minutes,
and why. All other figures count since the proxy's start.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.output != "" && f.output != "json" {
				return fmt.Errorf("--output %q: must be json, or not given", f.output)
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
			return f.print(cmd.OutOrStdout(), s)
		},
	}
	set := cmd.Flags()
	set.StringVar(&f.admin, "admin", "http://"+config.Default().AdminListen, "`URL` of the proxy's admin address")
	set.BoolVarP(&f.watch, "watch", "w", false, "refresh once a second until interrupted")
	set.StringVarP(&f.output, "output", "o", "", "`FORMAT`: json (default: text)")
	return cmd
}

func adminURL(admin string) (string, error) {
	text := admin
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", fmt.Errorf("--admin %q: must be the URL of a proxy's admin address, as in http://127.0.0.1:8002", admin)
	}
	return strings.TrimSuffix(u.String(), "/"), nil
}

// fetch gets the status of a proxy. Errors say what to check.
func fetch(ctx context.Context, base string) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/status", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		var why net.Error
		if errors.As(err, &why) && why.Timeout() {
			err = fmt.Errorf("no answer within %s", timeout)
		}
		return nil, fmt.Errorf("admin address %s cannot be reached: %w; check that the proxy runs, and that --admin names its adminListen, which it prints at start (in a cluster: kubectl port-forward)", base, err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	var s Status
	err = json.NewDecoder(io.LimitReader(resp.Body, maxBytes)).Decode(&s)
	if resp.StatusCode != http.StatusOK || err != nil || s.Upstream == "" {
		return nil, fmt.Errorf("%s answers %s, but not as the admin address of a proxy; check that --admin names adminListen and not listen", base, resp.Status)
	}
	return &s, nil
}

// follow prints the status again and again until ctx ends. If the proxy does not answer, it says so
// and tries again.
func (f *flags) follow(ctx context.Context, base string, stdout, stderr io.Writer) {
	wipe := ""
	if f.output == "" && isTerminal(stdout) {
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
		if f.output == "" && wipe == "" {
			fmt.Fprintln(stdout)
		}
	}
}

func (f *flags) print(w io.Writer, s *Status) error {
	if f.output == "" {
		return s.writeText(w)
	}
	e := json.NewEncoder(w)
	if !f.watch { // a line for each second otherwise
		e.SetIndent("", "  ")
	}
	return e.Encode(s)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}
