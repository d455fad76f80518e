package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/watchproxy/watchproxy/config"
)

const (
	timeout   = 10 * time.Second
	maxBytes  = 64 << 20 // a feed has some 500
	maxReason = 4 << 10  // why a request is refused
)

type flags struct {
	admin  string
	base   string // the parsed admin
	output string
	check  bool
	client client
}

// ErrUnhealthy says that a proxy is not healthy. The command has printed the reasons.
var ErrUnhealthy = errors.New("the proxy is not healthy")

// Command returns the command status.
func Command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the caches of a running proxy",
		Long: `status shows the caches of a running proxy in a table. -o json shows all that
/status of the admin address has: also the memory, the requests, what the caches save
upstream, and why requests were forwarded in the last five minutes.

--check is for scripts. It exits with 0 if the proxy is healthy, and else with 1 and a
reason in each line. A healthy proxy answers at its admin address, is ready (neither
starting nor draining), serves with its current configuration file, reaches upstream,
and none of its feeds has lost upstream for more than 10 seconds. A feed may still be
syncing: requests for its resource wait or are forwarded.

--check --as-client URL gets a URL from the proxy as a client does, and does not ask the
admin address. It verifies the proxy's certificate. It tries again for a minute, because
a proxy may be about to start, except if the proxy refuses the client.`,
		Example: `  watchproxy status --check || echo "look after the proxy"
  watchproxy status -o json`,
		Args: cobra.NoArgs,
		// An error before RunE is one of the command line.
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			return f.validate(cmd.Flags().Changed)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.client.url != "" {
				return f.client.run(cmd.Context(), cmd.OutOrStdout())
			}
			base := f.base
			text, s, err := fetch(cmd.Context(), base)
			switch {
			case err != nil:
				return err
			case f.check:
				return report(cmd.Context(), base, s, cmd.OutOrStdout(), cmd.ErrOrStderr())
			case f.output == "json":
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			return s.writeTable(cmd.OutOrStdout())
		},
	}
	set := cmd.Flags()
	set.StringVar(&f.admin, "admin", "http://"+config.Default().AdminListen,
		"`URL` of the proxy's admin address")
	set.BoolVar(&f.check, "check", false,
		"only tell whether the proxy is healthy, by the exit code")
	set.StringVar(&f.client.url, "as-client", "",
		"`URL` that --check gets from the proxy, as in https://host/api/v1/pods?limit=1")
	set.StringVar(&f.client.authority, "certificate-authority", "",
		"PEM `FILE` with the CA of the proxy's certificate, for --as-client (default: the "+
			"system's CAs, also if there is no such file)")
	set.StringVar(&f.client.serverName, "tls-server-name", "",
		"`NAME` in the proxy's certificate, for --as-client (default: the URL's)")
	set.StringVar(&f.client.tokenFile, "token-file", "",
		"`FILE` with the client's bearer token, for --as-client")
	set.StringVarP(&f.output, "output", "o", "", "`FORMAT`: json (default: a table)")
	cmd.MarkFlagsMutuallyExclusive("as-client", "admin")
	cmd.MarkFlagsMutuallyExclusive("as-client", "output")
	cmd.MarkFlagsMutuallyExclusive("check", "output")
	return cmd
}

func (f *flags) validate(given func(flag string) bool) error {
	for _, flag := range []string{"certificate-authority", "tls-server-name", "token-file"} {
		if given(flag) && !given("as-client") {
			return fmt.Errorf("--%s needs --as-client", flag)
		}
	}
	if given("as-client") && !f.check {
		return errors.New("--as-client needs --check")
	}
	if given("as-client") && !strings.HasPrefix(f.client.url, "https://") {
		return fmt.Errorf("--as-client %q: must be an https URL", f.client.url)
	}
	if f.output != "" && f.output != "json" {
		return fmt.Errorf("--output %q: must be json, or not given", f.output)
	}
	f.base = f.admin
	if !strings.Contains(f.base, "://") {
		f.base = "http://" + f.base
	}
	u, err := url.Parse(f.base)
	f.base = strings.TrimSuffix(f.base, "/")
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("--admin %q: must be the URL of a proxy's admin address, "+
			"as in http://127.0.0.1:8002", f.admin)
	}
	return nil
}

// get requests a path of the admin address. Errors say what to check.
func get(ctx context.Context, base, path string) (resp *http.Response, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
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
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %s", timeout)
		}
		return nil, nil, fmt.Errorf("admin address %s cannot be reached: %w; "+
			"check that the proxy runs, and that --admin names its adminListen, "+
			"which it prints at start (in a cluster: kubectl port-forward)", base, err)
	}
	return resp, body, nil
}

func fetch(ctx context.Context, base string) (text []byte, s *Status, err error) {
	resp, text, err := get(ctx, base, "/status")
	if err != nil {
		return nil, nil, err
	}
	if resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden {
		return nil, nil, fmt.Errorf("%s refuses to show its status: %s; ask on a loopback address "+
			"(in a cluster: kubectl port-forward)", base, bytes.TrimSpace(text))
	}
	err = json.Unmarshal(text, &s)
	if resp.StatusCode != http.StatusOK || err != nil || s == nil || s.Upstream == "" {
		return nil, nil, fmt.Errorf("%s answers %s, but not as the admin address of a proxy; "+
			"check that --admin names adminListen and not listen", base, resp.Status)
	}
	return text, s, nil
}
