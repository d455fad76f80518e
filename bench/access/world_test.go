package access

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// world is an apiserver with users, some objects and rights. All tests share it; each starts proxies of its own.
type world struct {
	api     *cluster.APIServer
	server  *server // the same, as callers reach it
	admin   *kubernetes.Clientset
	dynamic *dynamic.DynamicClient
	audit   string // path of its log
	audited int64  // where to look for the next record in it
	dir     string // for files of the tests, removed at the end
	ca      *authority
	foreign *authority // that nobody trusts
	saKey   *ecdsa.PrivateKey
	callers map[string]*caller
}

var (
	shared     *world
	sharedErr  error
	sharedOnce sync.Once
)

// sharedWorld starts the world at its first call.
func sharedWorld(t *testing.T) *world {
	t.Helper()
	sharedOnce.Do(func() { shared, sharedErr = newWorld() })
	if sharedErr != nil {
		t.Fatal(sharedErr)
	}
	return shared
}

func closeWorld() error {
	if shared == nil {
		return nil
	}
	return shared.close()
}

func newWorld() (w *world, err error) {
	w = &world{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	const startLimit = 3 * time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if w.dir, err = os.MkdirTemp("", "access-"); err != nil {
		return w, err
	}
	w.audit = filepath.Join(w.dir, "audit.log")
	tokens := filepath.Join(w.dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(tokenFile()), 0o600); err != nil {
		return w, err
	}
	if w.api, err = cluster.StartAPIServer(ctx, cluster.Options{TokenFile: tokens, AuditLog: w.audit}); err != nil {
		return w, err
	}
	w.server = newServer("apiserver", w.api.URL, w.api.CA)
	if w.admin, err = kubernetes.NewForConfig(w.api.RESTConfig()); err != nil {
		return w, err
	}
	if w.dynamic, err = dynamic.NewForConfig(w.api.RESTConfig()); err != nil {
		return w, err
	}
	if w.ca, err = clusterAuthority(w.api.Dir); err != nil {
		return w, err
	}
	if w.foreign, err = foreignAuthority(w.ca); err != nil {
		return w, err
	}
	if w.saKey, err = readKey(filepath.Join(w.api.Dir, "sa.key")); err != nil {
		return w, err
	}
	if err := w.seed(ctx); err != nil {
		return w, err
	}
	if err := w.grant(ctx); err != nil {
		return w, err
	}
	if w.callers, err = w.newCallers(ctx); err != nil {
		return w, err
	}
	return w, w.settled(ctx)
}

func (w *world) close() (err error) {
	if w.server != nil {
		w.server.close()
	}
	if w.api != nil {
		err = w.api.Close()
	}
	return errors.Join(err, os.RemoveAll(w.dir))
}

// The users of the token file. A user's token is its name and then some.
const (
	proxyUser = "watchproxy"
	poorProxy = "watchproxy-poor" // has lost a right
	nodeUser  = "system:node:n1"
	crowdSize = 5000
)

func tokenOf(user string) string { return user + "-token" }

// tokenFile lists all users with tokens.
func tokenFile() string {
	var b strings.Builder
	for _, user := range []string{proxyUser, poorProxy, "reader", "one", "verbs", "dangling", "nobody", "impersonator", "leaver"} {
		fmt.Fprintf(&b, "%s,%s,%s-uid\n", tokenOf(user), user, user)
	}
	fmt.Fprintf(&b, "%s,%s,node-uid,system:nodes\n", tokenOf(nodeUser), nodeUser)
	for i := range crowdSize {
		fmt.Fprintf(&b, "%s,crowd-%d,crowd-%d,crowd\n", tokenOf(crowdUser(i)), i, i)
	}
	return b.String()
}

// settled waits until the apiserver knows all rights that it was given.
func (w *world) settled(ctx context.Context) error {
	const pause = 20 * time.Millisecond
	for _, c := range w.callers {
		for c.probe != "" {
			got, err := w.server.ask(ctx, c, request{target: c.probe})
			if err != nil {
				return err
			}
			if got.status == http.StatusOK {
				break
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return fmt.Errorf("%s may not read %s: %d %s", c.name, c.probe, got.status, got.body)
			}
		}
	}
	return nil
}

func crowdUser(i int) string { return fmt.Sprintf("crowd-%d", i) }
