package grants

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"
	"weak"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/query"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/filter"
)

const (
	// settleWait limits the wait for the reviews of all namespaces. The next read continues.
	settleWait = 30 * time.Second
	// recheckLeast is the shortest interval between two looks at the grants of an open watch.
	recheckLeast = 500 * time.Millisecond
)

// ErrUnreviewed says that not all namespaces could be reviewed.
var ErrUnreviewed = errors.New("namespaces cannot be reviewed")

// Narrowing makes a read of all namespaces one of those that its sender may read. Until Settle has
// found them, they are none.
type Narrowing struct {
	Config
	book     *Book
	key      Key
	cache    *watchcache.Cache
	selected derived.Selected // whose namespaces are reviewed
	seen     Seen
}

// Config says what a Narrowing is for.
type Config struct {
	Access *access.Access
	View   *exchange.View
	Asked  query.Asked
	User   user.Info
	Watch  bool
}

// New returns a Narrowing.
func New(c Config) (n *Narrowing, err error) {
	n = &Narrowing{Config: c}
	n.Asked.Path = ""
	question := n.Asked
	question.Verb = "" // lists and watches have the same grants
	if exchange.IsNamespaces(question.GVR.GroupResource()) {
		question.Path = fmt.Sprint(c.View.Resources) // which decide on namespaces themselves
	}
	if n.key.Question, err = digest(question, c.User); err == nil {
		n.key.Common, err = digest(question, &user.DefaultInfo{Name: c.User.GetName()})
	}
	return n, err
}

func digest(question query.Asked, u user.Info) (sum [sha256.Size]byte, err error) {
	sum, err = access.Digest(question.Attributes(u))
	return sha256.Sum256(append(sum[:], question.Path...)), err
}

// From names the book that has the grants. Their memory counts as the sender's.
func (n *Narrowing) From(b *Book, sender string, c *watchcache.Cache, f *filter.Filter) {
	n.book, n.cache, n.selected = b, c, derived.Selected{Resource: c.Resource(), Filter: f}
	n.key.User, n.key.Cache = sender, weak.Make(c) // grants stay for longer than some caches
}

// Settle finds the namespaces that the sender may see. The client is shown a state at a
// resourceVersion, or with past it was shown it before. The error is ErrUnreviewed.
func (n *Narrowing) Settle(ctx context.Context, state watchcache.Snapshot, at uint64, past bool) error {
	return n.settle(ctx, state, Query{Watch: n.Watch, At: at, Past: past})
}

func (n *Narrowing) settle(ctx context.Context, state watchcache.Snapshot, q Query) (err error) {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	q.AllowTTL, q.DenyTTL = n.Access.TTL()
	q.Review, q.Namespaces = n.review, func() iter.Seq[string] { return n.selected.Namespaces(state.Tree) }
	cache := n.key.Cache.(weak.Pointer[watchcache.Cache])
	newest := func() uint64 {
		if c := cache.Value(); c != nil {
			return c.Stats().Newest
		}
		return 0
	}
	n.key.Epoch = n.cache.Stats().Epoch
	if n.seen, err = n.book.Of(n.key, newest).Settle(ctx, q); err != nil {
		return fmt.Errorf("%w: %w", ErrUnreviewed, err)
	}
	return nil
}

// again is Settle for an open watch, whose sender may be another user by now. If the grants have
// changed, the watch finds out itself.
func (n *Narrowing) again(ctx context.Context, u user.Info) error {
	now, err := New(Config{n.Access, n.View, n.Asked, u, true})
	if err != nil {
		return err
	}
	if now.key.Question != n.key.Question {
		return exchange.ErrRevoked
	}
	state, err := n.cache.Snapshot()
	if err != nil {
		return err
	}
	now.From(n.book, n.key.User, n.cache, n.selected.Filter)
	return now.settle(ctx, state, Query{Watch: true, At: state.ResourceVersion(), Past: true, Early: true})
}

// review asks for the right to do verb in a namespace, or in all if namespace is "". A namespace
// itself is shown to those who may get it, or who may do verb to one of the view's resources in it.
func (n *Narrowing) review(ctx context.Context, verb, namespace string) (allowed bool, err error) {
	asked := n.Asked
	asked.Verb = verb
	if namespace == "" {
		decision, _, err := n.Access.Authorize(ctx, asked.Attributes(n.User)) // which is remembered there
		return decision == authorizer.DecisionAllow, err
	}
	asked.Namespace = namespace
	if !exchange.IsNamespaces(asked.GVR.GroupResource()) {
		return n.Access.Review(ctx, asked.Attributes(n.User))
	}
	in := query.Asked{Route: exchange.Route{GVR: asked.GVR, Namespace: namespace, Name: namespace, Verb: "get"}}
	allowed, err = n.Access.Review(ctx, in.Attributes(n.User))
	for _, gr := range n.View.Resources {
		if allowed || err != nil {
			break
		}
		in.Route = exchange.Route{GVR: gr.WithVersion("*"), Namespace: namespace, Verb: verb}
		allowed, err = n.Access.Review(ctx, in.Attributes(n.User))
	}
	return allowed, err
}

// All reports whether the sender may see all namespaces.
func (n *Narrowing) All() bool { return n == nil || n.seen.All }

// Seen returns what the sender may see.
func (n *Narrowing) Seen() *Seen { return &n.seen }

// Decision returns the decision for the audit log.
func (n *Narrowing) Decision() exchange.Decision {
	return exchange.Decision{User: n.User, Allowed: true, Reason: fmt.Sprintf("%d namespaces in the view %s", len(n.seen.Namespaces), n.View)}
}

// Interval returns the interval between two looks at the grants of an open watch. Watches without
// narrowing are reviewed at the interval recheck; 0 means never.
func (n *Narrowing) Interval(recheck time.Duration) time.Duration {
	const looks = 4 // within the time for which a decision counts
	allow, deny := n.Access.TTL()
	own := max(min(allow, deny)/looks, recheckLeast)
	if recheck > 0 {
		return min(own, recheck)
	}
	return own
}

// Seal returns the end of continue tokens. It differs between users and between sets of namespaces,
// so that all pages of a list show the same ones. It is empty if they are all.
func (n *Narrowing) Seal() string {
	if n.All() {
		return ""
	}
	const size = 12
	sum := sha256.Sum256(append(n.key.Question[:], strings.Join(n.seen.Namespaces, "/")...))
	return "." + base64.RawURLEncoding.EncodeToString(sum[:size])
}

// Unseal returns a continue token without its seal.
func Unseal(token string) (rest, seal string) {
	if at := strings.LastIndexByte(token, '.'); at >= 0 {
		return token[:at], token[at:]
	}
	return token, ""
}
