package grants

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/watchproxy/watchproxy/proxy/access"
	"github.com/watchproxy/watchproxy/proxy/derived"
	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/fair"
	"github.com/watchproxy/watchproxy/watchcache"
	"github.com/watchproxy/watchproxy/watchcache/object"
)

const (
	// decideWait limits the wait for the reviews of all namespaces. The next read finds those that
	// have ended, while they count.
	decideWait = 30 * time.Second
	// nameCost is the cost of finding a decision that is remembered.
	nameCost = 10_000
)

// Narrowing makes a read of all namespaces one of those that its sender may read. Until Decide has
// found them, they are none.
type Narrowing struct {
	Config
	eras     *Eras
	key      Key
	cache    *watchcache.Cache
	selected derived.Selected // whose namespaces are reviewed
	all      bool
	names    []string
}

// Config says what a Narrowing is for.
type Config struct {
	Access *access.Access
	View   *exchange.View
	Asked  exchange.Asked
	User   user.Info
	Watch  bool
}

// New returns a Narrowing.
func New(c Config) (n *Narrowing, err error) {
	n = &Narrowing{Config: c}
	n.Asked.Path = ""
	n.key.Question, err = n.question(c.User)
	return n, err
}

func (n *Narrowing) question(u user.Info) ([sha256.Size]byte, error) {
	sum, err := access.Digest(n.Asked.Attributes(u))
	if exchange.IsNamespaces(n.Asked.GVR.GroupResource()) {
		// The view's resources decide on namespaces themselves.
		sum = sha256.Sum256(fmt.Append(sum[:], n.View.Resources))
	}
	return sum, err
}

func (n *Narrowing) isOf(u user.Info) bool {
	question, err := n.question(u)
	return err == nil && question == n.key.Question
}

// From names the eras of watches. Their decisions count as the sender's. Decisions are sought in
// turns of the meter.
func (n *Narrowing) From(
	s *Eras, sender string, c *watchcache.Cache, f *object.Filter, m *fair.Meter,
) {
	n.eras, n.cache, n.selected = s, c, derived.Selected{
		Resource: c.Resource(),
		Filter:   f,
		Meter:    m,
	}
	n.key.User, n.key.Cache = sender, c
}

// Decide finds the namespaces in a state that the sender may see. It returns nil unless the read is
// a watch that does not show all. The error is ErrUnreviewed, ErrTooMany, or the meter's.
func (n *Narrowing) Decide(ctx context.Context, state watchcache.Snapshot) (w *Watch, err error) {
	ctx, cancel := context.WithTimeout(ctx, decideWait)
	defer cancel()
	n.selected.Meter.ReleaseSlot() // before the wait for reviews
	all, err := n.Review(ctx, "")
	if n.all = all.Allowed; err == nil && !n.all {
		names := slices.Collect(n.selected.Namespaces(state.Tree))
		if err := n.selected.Meter.Spend(nameCost * int64(len(names))); err != nil {
			return nil, err
		}
		n.selected.Meter.ReleaseSlot()
		if n.Watch {
			w, err = n.eras.Open(ctx, n.key, n, names)
		} else {
			n.names, err = n.among(ctx, names)
		}
	}
	if w != nil {
		n.names = w.Namespaces()
	}
	if err != nil && !errors.Is(err, ErrTooMany) {
		err = fmt.Errorf("%w: %w", ErrUnreviewed, err)
	}
	return w, err
}

func (n *Narrowing) among(ctx context.Context, names []string) (allowed []string, err error) {
	answers := make([]Answer, len(names))
	err = each(ctx, names, func(ctx context.Context, i int) (err error) {
		answers[i], err = n.Review(ctx, names[i])
		return err
	})
	for i, name := range names {
		if answers[i].Allowed {
			allowed = append(allowed, name)
		}
	}
	slices.Sort(allowed)
	return allowed, err
}

// Review implements Reviewer.
func (n *Narrowing) Review(ctx context.Context, namespace string) (a Answer, err error) {
	if a, err = n.review(ctx, "list", namespace); err != nil || !a.Allowed || !n.Watch {
		return a, err
	}
	watches, err := n.review(ctx, "watch", namespace) // after the state, which is a list
	if err == nil && watches.Allowed && a.Until.Before(watches.Until) {
		return a, nil
	}
	return watches, err
}

// review asks for the right to do verb in a namespace, or in all if namespace is "". A namespace
// itself is shown to those who may get it, or who may do verb to one of the view's resources in it.
func (n *Narrowing) review(ctx context.Context, verb, namespace string) (a Answer, err error) {
	asked := n.Asked
	asked.Verb, asked.Namespace = verb, namespace
	if namespace == "" || !exchange.IsNamespaces(asked.GVR.GroupResource()) {
		return n.may(ctx, asked)
	}
	in := exchange.Asked{Route: exchange.Route{
		GVR:       asked.GVR,
		Namespace: namespace,
		Name:      namespace,
		Verb:      "get",
	}}
	a, err = n.may(ctx, in)
	for _, gr := range n.View.Resources {
		if a.Allowed || err != nil {
			break
		}
		in.Route = exchange.Route{
			GVR:       gr.WithVersion("*"),
			Namespace: namespace,
			Verb:      verb,
		}
		a, err = n.may(ctx, in)
	}
	return a, err
}

func (n *Narrowing) may(ctx context.Context, asked exchange.Asked) (a Answer, err error) {
	a.Allowed, a.Until, err = n.Access.Allows(ctx, asked.Attributes(n.User))
	return a, err
}

// Namespaces implements Reviewer.
func (n *Narrowing) Namespaces() iter.Seq[string] {
	state, err := n.cache.Snapshot()
	if err != nil {
		return func(func(string) bool) {}
	}
	return n.selected.Namespaces(state.Tree)
}

// DenyTTL implements Reviewer.
func (n *Narrowing) DenyTTL() time.Duration { return n.Access.DenyTTL() }

// All reports whether the sender may see all namespaces.
func (n *Narrowing) All() bool { return n == nil || n.all }

// Shown returns the namespaces that the sender may see, sorted.
func (n *Narrowing) Shown() []string { return n.names }

// Decision returns the decision for the audit log.
func (n *Narrowing) Decision() access.Decision {
	return access.Decision{
		User:    n.User,
		Allowed: true,
		Reason:  fmt.Sprintf("%d namespaces in the view %s", len(n.names), n.View),
	}
}

// Seal returns the end of continue tokens. It differs between users and between sets of namespaces,
// so that all pages of a list show the same ones. It is empty if they are all.
func (n *Narrowing) Seal() string {
	if n.All() {
		return ""
	}
	const size = 12
	sum := sha256.Sum256(append(n.key.Question[:], strings.Join(n.names, "/")...))
	return "." + base64.RawURLEncoding.EncodeToString(sum[:size])
}

// Unseal returns a continue token without its seal.
func Unseal(token string) (rest, seal string) {
	if at := strings.LastIndexByte(token, '.'); at >= 0 {
		return token[:at], token[at:]
	}
	return token, ""
}
