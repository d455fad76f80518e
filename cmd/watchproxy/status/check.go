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

const (
	// lostFor is how long a healthy feed may lose upstream. Broken streams resume within seconds.
	lostFor = 10 * time.Second
	// silentFor is how long checks, which a single server gets every 10 s, may fail.
	silentFor = 20 * time.Second
)

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
			reason := strings.TrimPrefix(string(why), "internal server error: ")
			reasons = append(reasons, "not ready: "+strings.TrimSpace(reason))
		}
	}
	if len(reasons) == 0 {
		reasons = []string{"not ready: /readyz answers " + strings.TrimSpace(string(text))}
	}
	return reasons, nil
}

func (s *Status) unhealthy() (reasons []string) {
	if s.ConfigRefused {
		reasons = append(reasons, "the configuration file is refused, "+
			"and the previous configuration is in effect: see the log")
	}
	for _, f := range s.Feeds {
		if f.LostSeconds > lostFor.Seconds() {
			const lost = "%s (%s): upstream is lost since %s: check %s and the proxy's log"
			since := age(f.LostSeconds)
			reasons = append(reasons, fmt.Sprintf(lost, f.name(), f.Encoding, since, s.Upstream))
		}
	}
	if s.UpstreamSilentSeconds > silentFor.Seconds() {
		const silent = "upstream answers no checks since %s: check %s and the proxy's log"
		reasons = append(reasons, fmt.Sprintf(silent, age(s.UpstreamSilentSeconds), s.Upstream))
	}
	return reasons
}
