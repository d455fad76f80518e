//go:build crowd

package allowed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// crowd has so many users and namespaces that their decisions take most of the memory for decisions.
type crowd struct {
	*world
	proxy      *proxy
	namespaces []string
	users      []caller
	may        []map[string]bool // namespaces, by user
}

const (
	crowdUsers      = 500
	crowdNamespaces = 2000
	crowdRights     = 10 // of each user
	crowdChanges    = 1000
	crowdAtOnce     = 8 // requests
	crowdAllowed    = 10 * time.Second
	crowdLimit      = 20 * time.Minute // until a grant shows
)

// Each of very many users sees the union of the lists of its own namespaces. Then rights change at
// random. Lists that begin a TTL later do not show what was taken away, although it was shown just
// before. In the end, all lists show what was given. This takes millions of reviews.
func TestCrowd(t *testing.T) {
	random := rand.New(rand.NewPCG(cluster.Seed(), 3))
	c := newCrowd(t, random)
	began := time.Now()
	if err := c.each(t.Context(), c.checkUnion); err != nil {
		t.Fatal(err)
	}
	t.Logf("first lists of all users: %v, %v", time.Since(began).Round(time.Second), c.reviews(t))
	began = time.Now()
	if err := c.change(t.Context(), random); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d changes of rights: %v", crowdChanges, time.Since(began).Round(time.Second))
	if err := c.takeShown(t.Context(), random); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	cluster.Pause(t.Context(), crowdAllowed)
	err := c.each(t.Context(), func(ctx context.Context, user int) error {
		shown, err := c.list(ctx, user)
		for namespace := range shown {
			if !c.may[user][namespace] {
				err = errors.Join(err, fmt.Errorf("%s still sees %s", c.users[user].name, namespace))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("no list shows what was taken away: checked until %v after the last change", time.Since(began).Round(time.Second))
	err = c.each(t.Context(), func(ctx context.Context, user int) error {
		for {
			err := c.checkUnion(ctx, user)
			if err == nil || time.Since(began) > crowdLimit {
				return err
			}
			cluster.Pause(ctx, time.Second)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("all lists show what was given: %v after the last change, %v", time.Since(began).Round(time.Second), c.reviews(t))
}

func newCrowd(t *testing.T, random *rand.Rand) *crowd {
	t.Helper()
	c := &crowd{world: &world{}}
	var tokens strings.Builder
	for i := range crowdUsers {
		c.users = append(c.users, user(fmt.Sprintf("crowd%d", i)))
		fmt.Fprintf(&tokens, "%s,%s,%[2]s-uid\n", c.users[i].token, c.users[i].name)
	}
	c.server = cluster.APIServerT(t, cluster.Options{Users: tokens.String()})
	c.api = cluster.EndpointT(t, "apiserver", c.server.URL, "", c.server.CA)
	c.admin, c.dynamic = c.server.Client(), c.server.Dynamic()
	if err := c.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range crowdNamespaces {
		c.namespaces = append(c.namespaces, fmt.Sprintf("crowd-%d", i))
	}
	err := workload.Parallel(t.Context(), crowdNamespaces, crowdAtOnce, func(ctx context.Context, i int) error {
		mark, err := c.namespace(ctx, c.namespaces[i])
		if err != nil {
			return err
		}
		return c.create(ctx, configmaps, c.namespaces[i], object(configmaps, "o-"+mark, "web", mark))
	})
	if err != nil {
		t.Fatal(err)
	}
	for range c.users {
		may := map[string]bool{}
		for len(may) < crowdRights {
			may[pick(random, c.namespaces...)] = true
		}
		c.may = append(c.may, may)
	}
	err = c.each(t.Context(), func(ctx context.Context, user int) error {
		for namespace := range c.may[user] {
			if err := c.bind(ctx, namespace, "configs", cluster.Users(c.users[user].name)...); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = c.settled(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	c.proxy = c.proxyT(t, c.server.URL, fmt.Sprintf("authorization: {webhook: {cacheAuthorizedTTL: %v, cacheUnauthorizedTTL: 1m}}\n", crowdAllowed))
	return c
}

func (c *crowd) each(ctx context.Context, do func(ctx context.Context, user int) error) error {
	return workload.Parallel(ctx, len(c.users), crowdAtOnce, do)
}

// change gives and takes rights.
func (c *crowd) change(ctx context.Context, random *rand.Rand) error {
	for i := range crowdChanges {
		user, do := random.IntN(len(c.users)), c.give
		if i%2 == 0 && len(c.may[user]) > 1 {
			do = c.take
		}
		if err := do(ctx, random, user); err != nil {
			return err
		}
	}
	return c.settled(ctx)
}

func (c *crowd) give(ctx context.Context, random *rand.Rand, user int) error {
	namespace := pick(random, c.namespaces...)
	if c.may[user][namespace] {
		return nil
	}
	c.may[user][namespace] = true
	return c.bind(ctx, namespace, "configs", cluster.Users(c.users[user].name)...)
}

func (c *crowd) take(ctx context.Context, random *rand.Rand, user int) error {
	namespace := pick(random, slices.Sorted(maps.Keys(c.may[user]))...)
	delete(c.may[user], namespace)
	return c.unbind(ctx, namespace, "configs", c.users[user].name)
}

// takeShown takes a right from each of the users whom each asks first, just after they have listed.
func (c *crowd) takeShown(ctx context.Context, random *rand.Rand) error {
	err := workload.Parallel(ctx, crowdAtOnce, crowdAtOnce, func(ctx context.Context, user int) error {
		_, err := c.list(ctx, user)
		return err
	})
	for user := range crowdAtOnce {
		err = errors.Join(err, c.take(ctx, random, user))
	}
	return errors.Join(err, c.settled(ctx))
}

// list returns the objects that the view shows to a user, by namespace.
func (c *crowd) list(ctx context.Context, user int) (map[string][]item, error) {
	l, allowed, err := listed(ctx, c.proxy.Endpoint, c.users[user], cluster.Get(mine))
	if err == nil && !allowed {
		err = fmt.Errorf("%s: forbidden", c.users[user].name)
	}
	return byNamespace(l.items), err
}

func byNamespace(items []item) map[string][]item {
	by := map[string][]item{}
	for _, i := range items {
		namespace, _, _ := strings.Cut(i.key, "/")
		by[namespace] = append(by[namespace], i)
	}
	return by
}

// checkUnion compares a user's list with the lists of its namespaces that the user gets from the
// apiserver. Objects do not change meanwhile, so all are of one resourceVersion.
func (c *crowd) checkUnion(ctx context.Context, user int) error {
	got, err := c.list(ctx, user)
	if err != nil {
		return err
	}
	if len(got) != len(c.may[user]) {
		return fmt.Errorf("%s sees %d namespaces instead of %d", c.users[user].name, len(got), len(c.may[user]))
	}
	for namespace := range c.may[user] {
		want, allowed, err := listed(ctx, c.api, c.users[user], cluster.Get(configmaps.path(namespace)))
		if err == nil && !allowed {
			err = fmt.Errorf("%s may not list %s", c.users[user].name, namespace)
		}
		if err != nil {
			return err
		}
		if d := differs(want.items, got[namespace]); d != "" {
			return fmt.Errorf("%s: %s", c.users[user].name, d)
		}
	}
	return nil
}

// reviews describes how many reviews the proxy has sent.
func (c *crowd) reviews(t *testing.T) string {
	t.Helper()
	m := c.proxy.process.MetricsT(t)
	return fmt.Sprintf("%.0f reviews", m.Sum("watchproxy_reviews_total", `resource="subjectaccessreviews"`))
}
