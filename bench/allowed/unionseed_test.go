package allowed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// random users have rights in random namespaces.
const randomUsers = 6

func unionUsers() (names []string) {
	for i := range randomUsers {
		names = append(names, fmt.Sprintf("random%d", i))
	}
	return append(names, "nobody", "every", "lister", "watcher", "named", "mixed", "impersonator")
}

const unionNamespaces = 40

// newUnion creates the objects and the rights, starts a proxy, and makes changes.
func newUnion(t *testing.T, w *world) *union {
	t.Helper()
	ctx := t.Context()
	u := &union{world: w, random: rand.New(rand.NewPCG(cluster.Seed(), 1))}
	u.namespaces = spread(u.random, unionNamespaces, "")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var tasks []func(ctx context.Context) error
	marks := map[string]string{}
	for _, n := range u.namespaces {
		mark, err := w.namespace(ctx, n)
		must(err)
		marks[n] = mark
	}
	for i, n := range u.namespaces {
		if i%9 == 8 {
			continue // without objects
		}
		for _, r := range []resource{configmaps, pods, widgets, secrets} {
			for j := range u.random.IntN(5) {
				name, app := fmt.Sprintf("%c-%s-%d", 'a'+u.random.IntN(5), marks[n], j), pick(u.random, "web", "db", "")
				if j == 0 {
					name = common
				}
				tasks = append(tasks, func(ctx context.Context) error { return w.create(ctx, r, n, object(r, name, app, marks[n])) })
			}
		}
	}
	tasks = append(tasks, u.rights()...)
	all := func(tasks []func(ctx context.Context) error) error {
		const atOnce = 8
		return workload.Parallel(ctx, len(tasks), atOnce, func(ctx context.Context, i int) error { return tasks[i](ctx) })
	}
	must(all(tasks))
	must(w.server.Allow(ctx, "", "impersonators", cluster.Users("impersonator"), rbacv1.PolicyRule{APIGroups: []string{""}, Verbs: []string{"impersonate"}, Resources: []string{"users"}, ResourceNames: []string{"random0"}}))
	must(w.settled(ctx))
	u.proxy = w.proxyT(t, w.server.URL, long)
	for _, r := range []resource{configmaps, pods, widgets, namespaces} {
		for _, accept := range []string{inJSON, inProtobuf + "," + inJSON, inTable} {
			_, err := get(ctx, u.proxy.Endpoint, w.adminCaller(), cluster.Get("/views/mine"+r.path("")+"?resourceVersion=0").With("Accept", accept))
			must(err)
		}
	}
	u.old = w.newest(t)
	must(all(u.changes(marks)))
	for _, r := range []resource{configmaps, pods, widgets} { // after all deletions
		must(w.create(ctx, r, u.namespaces[0], object(r, "last-"+marks[u.namespaces[0]], "web", marks[u.namespaces[0]])))
	}
	u.now = map[resource]string{}
	for _, r := range []resource{configmaps, pods, widgets, namespaces} {
		u.now[r] = w.lastChange(t, r)
	}
	return u
}

// rights gives the users their rights and collects the callers.
func (u *union) rights() (tasks []func(ctx context.Context) error) {
	give := func(role, namespace string, to ...rbacv1.Subject) {
		tasks = append(tasks, func(ctx context.Context) error { return u.bind(ctx, namespace, role, to...) })
	}
	some := func(of int) (names []string) {
		for _, n := range u.namespaces {
			if u.random.IntN(of) == 0 {
				names = append(names, n)
			}
		}
		return names
	}
	for i := range randomUsers {
		for _, n := range some(1 + i) {
			if i > 0 || n != "a" { // nobody but every has all
				give("reads", n, cluster.Users(fmt.Sprintf("random%d", i))...)
			}
		}
	}
	for _, n := range u.namespaces {
		give("reads", n, cluster.Users("every")...)
	}
	for _, r := range []struct{ user, role string }{
		{"lister", "lists"}, {"watcher", "watches"}, {"named", "common"}, {"mixed", "configs"}, {"mixed", "pods"}, {"mixed", "itself"},
	} {
		for _, n := range some(3) {
			give(r.role, n, cluster.Users(r.user)...)
		}
	}
	for _, n := range some(3) {
		give("reads", n, cluster.Groups("mates")...)
	}
	for _, name := range unionUsers() {
		u.callers = append(u.callers, user(name))
	}
	impersonating := user("impersonator")
	impersonating.name, impersonating.header = "impersonator as random0", http.Header{"Impersonate-User": {"random0"}}
	u.callers = append(u.callers, impersonating, user("mate"), u.adminCaller())
	return tasks
}

// changes returns changes of some objects, the deletion of others, and the first objects of a
// namespace.
func (u *union) changes(marks map[string]string) (tasks []func(ctx context.Context) error) {
	do := func(task func(ctx context.Context) error) { tasks = append(tasks, task) }
	for i, n := range u.namespaces {
		for _, r := range []resource{configmaps, pods, widgets} {
			switch {
			case i%9 == 8 && i%2 == 0:
				do(func(ctx context.Context) error { return u.create(ctx, r, n, object(r, common, "db", marks[n])) })
			case i%5 == 0:
				do(func(ctx context.Context) error {
					return u.create(ctx, r, n, object(r, "new-"+marks[n], pick(rand.New(rand.NewPCG(1, uint64(i))), "web", "db"), marks[n]))
				})
			case i%5 == 1:
				do(func(ctx context.Context) error {
					err := u.remove(ctx, r, n, common)
					if apierrors.IsNotFound(err) {
						return nil
					}
					return err
				})
			case i%5 == 2:
				do(func(ctx context.Context) error {
					_, err := u.dynamic.Resource(r.GroupVersionResource).Namespace(n).Patch(ctx, common, types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"db"}}}`), metav1.PatchOptions{})
					if apierrors.IsNotFound(err) {
						return nil
					}
					return err
				})
			}
		}
	}
	do(func(ctx context.Context) error {
		_, err := u.dynamic.Resource(namespaces.GroupVersionResource).Patch(ctx, "ab", types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"db"}}}`), metav1.PatchOptions{})
		return err
	})
	slices.Reverse(tasks)
	return tasks
}

// newest returns the latest resourceVersion.
func (w *world) newest(t *testing.T) string {
	t.Helper()
	l, err := w.admin.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l.ResourceVersion
}

// lastChange returns the resourceVersion of the object that was changed last.
func (w *world) lastChange(t *testing.T, r resource) string {
	t.Helper()
	l, err := w.dynamic.Resource(r.GroupVersionResource).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var last uint64
	for _, o := range l.Items {
		rv, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		last = max(last, rv)
	}
	return strconv.FormatUint(last, 10)
}
