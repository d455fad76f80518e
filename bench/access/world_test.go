package access

import (
	"crypto/ecdsa"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/keyutil"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// world is an apiserver with users, objects and rights. All tests share it. A test starts proxies of
// its own, or shares openFront or closedFront.
type world struct {
	api     *cluster.APIServer
	server  *server // the same apiserver, as callers reach it
	admin   *kubernetes.Clientset
	dynamic *dynamic.DynamicClient
	audit   *cluster.AuditLog
	policy  string // file with auditPolicy
	ca      *cluster.Authority
	foreign *cluster.Authority // trusted by no server
	saKey   *ecdsa.PrivateKey
	callers map[string]*caller
}

// sharedWorld starts the world at its first call.
var sharedWorld = cluster.Shared(newWorld)

func newWorld(tb testing.TB) *world {
	tb.Helper()
	dir := tb.TempDir()
	w := &world{audit: &cluster.AuditLog{Path: filepath.Join(dir, "audit.log")}, policy: filepath.Join(dir, "policy.yaml")}
	cluster.MustT(tb, os.WriteFile(w.policy, []byte(auditPolicy), 0o600))
	w.api = cluster.APIServerT(tb, cluster.Options{
		Users: tokenFile(), AuditLog: w.audit.Path,
		Flags: []string{"--audit-policy-file=" + w.policy, "--cors-allowed-origins=//dash\\.example$"},
	})
	w.server = newServer(tb, "apiserver", w.api.URL, w.api.CA)
	w.admin, w.dynamic = w.api.Client(), w.api.Dynamic()
	w.ca = w.api.AuthorityT(tb)
	w.foreign = w.ca.ImpostorT(tb)
	key, err := keyutil.PrivateKeyFromFile(filepath.Join(w.api.Dir, "sa.key"))
	cluster.MustT(tb, err)
	w.saKey = key.(*ecdsa.PrivateKey)
	cluster.MustT(tb, errors.Join(w.seed(tb.Context()), w.grant(tb.Context(), tb), w.createPrecious(tb.Context())))
	w.callers = w.newCallers(tb)
	for _, c := range w.callers {
		cluster.Eventually(tb, c.name+" has its rights", func() bool {
			return c.probe == "" || w.server.must(tb, c, request{target: c.probe}).status == ok
		})
	}
	return w
}

// These are the users in the token file. A user's token is the name with a suffix.
const (
	proxyUser   = "system:serviceaccount:watchproxy:watchproxy"
	poorProxy   = "watchproxy-poor"   // lacks one right
	masterProxy = "watchproxy-master" // has all rights
	nodeUser    = "system:node:n1"
)

func tokenOf(user string) string { return user + "-token" }

// tokenFile returns a file with the tokens of all users.
func tokenFile() string {
	var b strings.Builder
	for _, user := range []string{proxyUser, poorProxy, "reader", "one", "verbs", "dangling", "nobody", "impersonator", "delegate", "constrained", "leaver", "bob"} {
		fmt.Fprintf(&b, "%s,%s,%s-uid\n", tokenOf(user), user, user)
	}
	fmt.Fprintf(&b, "%s,%s,master-uid,system:masters\n", tokenOf(masterProxy), masterProxy)
	fmt.Fprintf(&b, "%s,%s,node-uid,system:nodes\n", tokenOf(nodeUser), nodeUser)
	return b.String()
}
