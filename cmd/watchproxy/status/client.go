package status

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

const (
	// clientTimeout is how long a client tries.
	clientTimeout = time.Minute
	// clientInterval is the least time from one attempt to the next.
	clientInterval = time.Second
)

// client gets a URL from a proxy as its clients do. `helm test` runs it.
type client struct{ url, authority, serverName, tokenFile string }

func (c *client) run(ctx context.Context, out io.Writer) error {
	var last error
	attempt := func(ctx context.Context) (done bool, _ error) {
		again, err := c.attempt(ctx)
		if err == nil || last == nil || ctx.Err() == nil { // a timeout is not the reason
			last = err
		}
		return err == nil || !again, nil
	}
	err := wait.PollUntilContextTimeout(ctx, clientInterval, clientTimeout, true, attempt)
	switch {
	case err != nil:
		return fmt.Errorf("get %s: no success: %w", c.url, last)
	case last != nil:
		return fmt.Errorf("get %s: %w", c.url, last)
	}
	_, err = fmt.Fprintln(out, "healthy")
	return err
}

// attempt gets the URL. If that fails, it reports whether another attempt may succeed.
func (c *client) attempt(ctx context.Context) (again bool, err error) {
	config := &rest.Config{BearerTokenFile: c.tokenFile}
	config.ServerName = c.serverName
	if c.authority != "" {
		config.CAData, err = os.ReadFile(c.authority) // each time: a proxy that starts writes it
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("--certificate-authority: %w", err)
		}
	}
	over, err := rest.HTTPClientFor(config)
	if err != nil {
		return false, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, http.NoBody)
	if err != nil {
		return false, err
	}
	resp, err := over.Do(req)
	if err != nil {
		return true, err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBytes))
	switch resp.StatusCode {
	case http.StatusOK:
		return true, err
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
	default:
		again = true
	}
	return again, fmt.Errorf("%s: %s", resp.Status,
		bytes.TrimSpace(body[:min(len(body), maxReason)]))
}
