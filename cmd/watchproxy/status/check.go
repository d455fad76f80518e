package status

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// lostFor is how long a healthy feed may have lost upstream. Broken streams resume within seconds.
const lostFor = 10 * time.Second

// silentFor is how long upstream may leave checks unanswered. A single server is checked every ten
// seconds.
const silentFor = 20 * time.Second

// report prints the reasons why a proxy is not healthy and returns ErrUnhealthy, or prints healthy.
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
		return ErrUnhealthy
	}
	_, err = fmt.Fprintln(stdout, "healthy")
	return err
}

// readiness returns the reasons why a proxy is not ready. The proxy's response contains the failed
// checks. Each check has its own path, whose response contains the reason.
func readiness(ctx context.Context, base string) (reasons []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp, text, err := get(ctx, base, "/readyz")
	if err != nil || resp.StatusCode == http.StatusOK {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		check, failed := strings.CutPrefix(line, "[-]")
		if !failed {
			continue
		}
		name, _, _ := strings.Cut(check, " ")
		resp, why, err := get(ctx, base, "/readyz/"+url.PathEscape(name))
		switch {
		case err != nil:
			return nil, err
		case resp.StatusCode != http.StatusOK: // else it has just become ready
			reasons = append(reasons, "not ready: "+strings.TrimSpace(strings.TrimPrefix(string(why), "internal server error: ")))
		}
	}
	if len(reasons) == 0 {
		reasons = []string{"not ready: /readyz answers " + strings.TrimSpace(string(text))}
	}
	return reasons, nil
}

// unhealthy returns the problems of a proxy that serves.
func (s *Status) unhealthy() (reasons []string) {
	if s.ConfigRefused {
		reasons = append(reasons, "the configuration file is refused, and the previous configuration is in effect: see the log")
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
