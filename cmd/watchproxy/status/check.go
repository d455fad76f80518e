package status

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/watchproxy/watchproxy/cmd/watchproxy/command"
)

// lostFor is how long a healthy feed may have lost upstream. Streams break occasionally, and feeds
// resume them within seconds.
const lostFor = 10 * time.Second

// silentFor is how long upstream may leave checks unanswered. A single server is checked every ten
// seconds.
const silentFor = 20 * time.Second

// report checks whether a proxy is healthy. If it is not, report prints each reason and returns an
// error.
func report(ctx context.Context, base string, s *Status, stdout, stderr io.Writer) error {
	unready, err := readiness(ctx, base)
	if err != nil {
		return err
	}
	reasons := append(unready, s.unhealthy()...)
	for _, why := range reasons {
		fmt.Fprintln(stderr, "watchproxy: not healthy:", why)
	}
	if len(reasons) > 0 {
		return command.ErrReported
	}
	_, err = fmt.Fprintln(stdout, "healthy")
	return err
}

// readiness returns the reasons why a proxy is not ready. The proxy's response contains the failed
// checks. Each check has its own path, whose response contains the reason.
func readiness(ctx context.Context, base string) (reasons []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ready, text, err := probe(ctx, base, "/readyz")
	if ready || err != nil {
		return nil, err
	}
	for line := range strings.Lines(text) {
		check, failed := strings.CutPrefix(line, "[-]")
		if !failed {
			continue
		}
		name, _, _ := strings.Cut(check, " ")
		passes, why, err := probe(ctx, base, "/readyz/"+url.PathEscape(name))
		switch {
		case err != nil:
			return nil, err
		case !passes: // if it passes now, it has just become ready
			reasons = append(reasons, "not ready: "+strings.TrimSpace(strings.TrimPrefix(why, "internal server error: ")))
		}
	}
	if len(reasons) == 0 {
		reasons = []string{"not ready: /readyz answers " + strings.TrimSpace(text)}
	}
	return reasons, nil
}

// probe requests a path of the probes. It returns the response's text unless the status is 200.
func probe(ctx context.Context, base, path string) (passes bool, text string, err error) {
	resp, err := get(ctx, base, path)
	if err != nil {
		return false, "", err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if resp.StatusCode == http.StatusOK {
		return true, "", nil
	}
	const enough = 4 << 10
	read, err := io.ReadAll(io.LimitReader(resp.Body, enough))
	if err != nil {
		return false, "", fmt.Errorf("readiness of %s: %w", base, err)
	}
	return false, string(read), nil
}

// unhealthy returns the problems of a proxy that serves.
func (s *Status) unhealthy() (reasons []string) {
	if s.ConfigRefused {
		reasons = append(reasons, "the configuration file is refused, and the previous configuration is in effect: see the log, or run 'watchproxy config validate'")
	}
	for _, f := range s.Feeds {
		if f.LostSeconds > lostFor.Seconds() {
			reasons = append(reasons, fmt.Sprintf("%s (%s): upstream is lost since %s: check %s and the proxy's log", f.name(), f.Encoding, age(f.LostSeconds), s.Upstream))
		}
	}
	if s.UpstreamSilentSeconds > silentFor.Seconds() {
		reasons = append(reasons, fmt.Sprintf("upstream answers no checks since %s: check %s and the proxy's log", age(s.UpstreamSilentSeconds), s.Upstream))
	}
	return reasons
}
