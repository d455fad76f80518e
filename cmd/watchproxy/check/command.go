// Package check contains the command that connects to a proxy as a client. `helm test` runs it.
package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// interval is the time between two attempts.
const interval = time.Second

type flags struct {
	server, authority, serverName, tokenFile string
	timeout                                  time.Duration
}

// Command returns the command check.
func Command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "check --server URL [PATH ...]",
		Short: "Connect to a proxy as a client does",
		Long: `check connects to a proxy, verifies its certificate, asks who the client is, and
gets the paths, as in /api/v1/pods?limit=1. It tries again until the timeout, because
a proxy may be about to start, except if the proxy refuses the client.`,
		Args: func(_ *cobra.Command, paths []string) error {
			for _, path := range paths {
				if !strings.HasPrefix(path, "/") {
					return fmt.Errorf("%q: a path begins with /, as in /api/v1/pods?limit=1", path)
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, paths []string) error { return f.run(cmd.Context(), cmd.OutOrStdout(), paths) },
	}
	set := cmd.Flags()
	set.StringVar(&f.server, "server", "", "`URL` of the proxy (required)")
	set.StringVar(&f.authority, "certificate-authority", "", "PEM `FILE` with the CA of the proxy's certificate (default: the system's CAs, also if there is no such file)")
	set.StringVar(&f.serverName, "tls-server-name", "", "`NAME` in the proxy's certificate (default: the server's)")
	set.StringVar(&f.tokenFile, "token-file", "", "`FILE` with the client's bearer token")
	const fallback = time.Minute
	set.DurationVar(&f.timeout, "timeout", fallback, "`TIME` until check gives up")
	if err := cmd.MarkFlagRequired("server"); err != nil {
		panic("BUG: " + err.Error())
	}
	return cmd
}

func (f *flags) run(ctx context.Context, out io.Writer, paths []string) error {
	if f.tokenFile != "" {
		if !strings.HasPrefix(f.server, "https://") {
			return errors.New("--token-file: a token is sent over https only")
		}
		if _, err := os.ReadFile(f.tokenFile); err != nil {
			return fmt.Errorf("--token-file: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	var last error
	err := wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		// The CA is read for each attempt, because the proxy publishes it when it starts.
		err := f.attempt(ctx, out, paths)
		if last == nil || ctx.Err() == nil { // a timeout is not the reason
			last = err
		}
		if err == nil {
			return true, nil
		}
		if apierrors.IsUnauthorized(last) || apierrors.IsForbidden(last) || apierrors.IsNotFound(last) {
			return false, last
		}
		return false, nil
	})
	if wait.Interrupted(err) && last != nil {
		return fmt.Errorf("%s: no success within %s: %w", f.server, f.timeout, last)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.server, err)
	}
	return nil
}

func (f *flags) attempt(ctx context.Context, out io.Writer, paths []string) error {
	config := &rest.Config{
		Host: f.server, BearerTokenFile: f.tokenFile, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{ServerName: f.serverName},
	}
	if f.authority != "" {
		ca, err := os.ReadFile(f.authority)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("--certificate-authority: %w", err)
		}
		config.CAData = ca
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ask who the client is: %w", err)
	}
	fmt.Fprintf(out, "%s: the client is %s\n", f.server, review.Status.UserInfo.Username)
	for _, path := range paths {
		body, err := client.RESTClient().Get().RequestURI(path).DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("get %s: %w", path, err)
		}
		fmt.Fprintf(out, "%s: %d bytes\n", path, len(body))
	}
	return nil
}
