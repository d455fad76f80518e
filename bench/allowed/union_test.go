package allowed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// A list in a view has the objects that its sender gets from each namespace, and no others.
func TestUnion(t *testing.T) {
	u := newUnion(t, sharedWorld(t))
	const questions, atOnce, shown = 40, 3, 5
	all, errs := make([]question, questions), make([]error, questions)
	for i := range all {
		all[i] = u.draw()
	}
	_ = workload.Parallel(t.Context(), len(all), atOnce, func(ctx context.Context, i int) error {
		if err := u.check(ctx, all[i]); err != nil {
			errs[i] = fmt.Errorf("%v:\n%w", all[i], err)
		}
		return nil
	})
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	for _, err := range errs[:min(shown, len(errs))] {
		t.Error(err)
	}
	t.Logf("%d of %d answers are wrong; %d show a part of the objects; %d pages; %d cannot be answered", len(errs), len(all), u.parts.Load(), u.pages.Load(), u.refused.Load())
	if u.parts.Load() < questions/8 || u.pages.Load() < questions || u.refused.Load() > questions/20 {
		t.Error("the test does not test")
	}
}

// union has the objects and the users of TestUnion.
type union struct {
	*world
	proxy      *proxy
	random     *rand.Rand
	namespaces []string
	of         map[string]string // marks
	callers    []caller
	old        string              // a resourceVersion before the changes
	now        map[resource]string // resourceVersions of the last changes

	parts, pages, refused atomic.Int64
}

// random users have rights in random namespaces.
const randomUsers, unionNamespaces = 6, 40

func unionUsers() (names []string) {
	for i := range randomUsers {
		names = append(names, fmt.Sprintf("random%d", i))
	}
	return append(names, "nobody", "every", "lister", "watcher", "named", "mixed", "impersonator")
}

// newUnion creates the objects and the rights, starts a proxy, and makes changes.
func newUnion(t *testing.T, w *world) *union {
	t.Helper()
	ctx := t.Context()
	u := &union{world: w, random: rand.New(rand.NewPCG(cluster.Seed(), 1)), of: map[string]string{}, now: map[resource]string{}}
	must := func(err error) {
		t.Helper()
		cluster.MustT(t, err)
	}
	all := func(tasks []func() error) {
		t.Helper()
		const atOnce = 8
		must(workload.Parallel(ctx, len(tasks), atOnce, func(_ context.Context, i int) error { return tasks[i]() }))
	}
	for _, n := range spread(u.random, unionNamespaces) {
		_, mark, err := w.namespace(ctx, n)
		must(err)
		u.namespaces, u.of[n] = append(u.namespaces, n), mark
	}
	all(slices.Concat(u.objects(ctx), u.rights(ctx)))
	must(w.server.Allow(ctx, "", "impersonators", cluster.Users("impersonator"), impersonating("random0")))
	must(w.settled(ctx))
	u.proxy = w.proxyT(t, w.server.URL, long)
	for _, r := range []resource{configmaps, pods, widgets, namespaces} {
		for _, accept := range []string{inJSON, inProtobuf + "," + inJSON, inTable} {
			_, err := get(ctx, u.proxy.Endpoint, w.adminCaller(), cluster.Get("/views/mine"+r.path("")+"?resourceVersion=0").With("Accept", accept))
			must(err)
		}
	}
	l, err := w.admin.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	must(err)
	u.old = l.ResourceVersion
	all(u.changes(ctx))
	for _, r := range []resource{configmaps, pods, widgets, namespaces} {
		var last uint64
		if r == namespaces {
			must(w.relabel(ctx, r, "", "ab"))
		} else { // after all deletions
			must(w.create(ctx, r, u.namespaces[0], object(r, "last-"+u.of[u.namespaces[0]], "web", u.of[u.namespaces[0]])))
		}
		l, err := w.dynamic.Resource(r.GroupVersionResource).List(ctx, metav1.ListOptions{})
		must(err)
		for _, o := range l.Items {
			rv, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
			must(err)
			last = max(last, rv)
		}
		u.now[r] = strconv.FormatUint(last, 10)
	}
	return u
}

// spread returns names in which the order of keys is not that of names: a-b/x is before a/x.
func spread(random *rand.Rand, n int) []string {
	names := []string{"a", "a-b", "ab", "a0", "a-0", "a--b", "b", "b-a", "ba"}
	const letters = "ab0z-"
	for len(names) < n {
		name := pick(random, "a", "b", "0", "z")
		for range random.IntN(4) {
			name += string(letters[random.IntN(len(letters))])
		}
		if !strings.HasSuffix(name, "-") && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func pick[T any](random *rand.Rand, of ...T) T { return of[random.IntN(len(of))] }

// empty is true for each ninth namespace, which has no objects at first.
func empty(i int) bool { return i%9 == 8 }

func (u *union) objects(ctx context.Context) (tasks []func() error) {
	for i, n := range u.namespaces {
		if empty(i) {
			continue
		}
		for _, r := range []resource{configmaps, pods, widgets, secrets} {
			for j := range u.random.IntN(5) {
				name, app := fmt.Sprintf("%c-%s-%d", 'a'+u.random.IntN(5), u.of[n], j), pick(u.random, "web", "db", "")
				if j == 0 {
					name = common
				}
				tasks = append(tasks, func() error { return u.create(ctx, r, n, object(r, name, app, u.of[n])) })
			}
		}
	}
	return tasks
}

// rights gives the users their rights and collects the callers.
func (u *union) rights(ctx context.Context) (tasks []func() error) {
	give := func(role string, of int, to rbacv1.Subject) {
		for _, n := range u.namespaces {
			if u.random.IntN(of) == 0 && (n != "a" || to.Name == "every") { // no other user has all
				tasks = append(tasks, func() error { return u.bind(ctx, n, role, to) })
			}
		}
	}
	for i, name := range unionUsers()[:randomUsers] {
		give("reads", 1+i, cluster.Users(name)[0])
	}
	give("reads", 1, cluster.Users("every")[0])
	give("reads", 3, cluster.Groups("mates")[0])
	for _, r := range []struct{ user, role string }{
		{"lister", "lists"}, {"watcher", "watches"}, {"named", "common"}, {"mixed", "configs"}, {"mixed", "pods"}, {"mixed", "itself"},
	} {
		give(r.role, 3, cluster.Users(r.user)[0])
	}
	for _, name := range unionUsers() {
		u.callers = append(u.callers, user(name))
	}
	u.callers = append(u.callers, user("impersonator").acting("random0"), user("mate"), u.adminCaller())
	return tasks
}

// changes returns changes of some objects, the deletion of others, and the first objects of a
// namespace.
func (u *union) changes(ctx context.Context) (tasks []func() error) {
	for i, n := range u.namespaces {
		for _, r := range []resource{configmaps, pods, widgets} {
			switch {
			case empty(i) && i%2 == 0:
				tasks = append(tasks, func() error { return u.create(ctx, r, n, object(r, common, "db", u.of[n])) })
			case i%5 == 0:
				tasks = append(tasks, func() error { return u.create(ctx, r, n, object(r, "new-"+u.of[n], "web", u.of[n])) })
			case i%5 == 1:
				tasks = append(tasks, func() error { return found(u.remove(ctx, r, n, common)) })
			case i%5 == 2:
				tasks = append(tasks, func() error { return found(u.relabel(ctx, r, n, common)) })
			}
		}
	}
	slices.Reverse(tasks)
	return tasks
}

// found is nil if the object was not there.
func found(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (w *world) relabel(ctx context.Context, r resource, namespace, name string) error {
	patch := []byte(`{"metadata":{"labels":{"app":"db"}}}`)
	_, err := w.dynamic.Resource(r.GroupVersionResource).Namespace(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// question is a list in a view.
type question struct {
	caller caller
	view   string
	of     resource
	values url.Values // without the limit
	limit  int        // of each page; 0 for none
	header http.Header
	http   cluster.Protocol
}

func (q question) String() string {
	return fmt.Sprintf("%s: /views/%s%s?%s limit %d %v HTTP/%d", q.caller.name, q.view, q.of.path(""), q.values.Encode(), q.limit, q.header, q.http)
}

// request returns the request of a list.
func (q question) request(target string, values url.Values) cluster.Request {
	return cluster.Request{Target: target + "?" + values.Encode(), Header: q.header.Clone(), Protocol: q.http}
}

const (
	inProtobuf = "application/vnd.kubernetes.protobuf"
	inJSON     = "application/json"
	partial    = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	inTable    = "application/json;as=Table;g=meta.k8s.io;v=v1"
)

// draw returns a random question.
func (u *union) draw() question {
	r := u.random
	some := func() string { return pick(r, u.namespaces...) }
	q := question{
		caller: pick(r, u.callers...), view: pick(r, "mine", "mine", "some", "pods", "configs"), values: url.Values{},
		of: pick(r, configmaps, configmaps, configmaps, pods, pods, widgets, namespaces), http: pick(r, cluster.HTTP2, cluster.HTTP2, cluster.HTTP2, cluster.HTTP1),
		header: http.Header{"Accept": {pick(r, inJSON, inJSON, inProtobuf+","+inJSON, inJSON+partial, inTable, inProtobuf+partial)}},
	}
	if q.of == widgets {
		q.view = "mine"
	} else if q.view == "pods" && q.of == configmaps || q.view == "configs" && q.of == pods {
		q.view = "some"
	}
	if s := pick(r, "", "", "", "app=web", "app in (web,db)", "!app", "app!=db", "none=such"); s != "" {
		q.values.Set("labelSelector", s)
	}
	fields := []string{"metadata.namespace=" + some(), "metadata.namespace!=" + some(), "metadata.namespace=" + some() + ",metadata.name=" + common}
	if q.of == namespaces {
		fields = []string{"metadata.name=" + some(), "metadata.name!=" + some()}
	}
	if s := pick(r, append(fields, "", "", "", "metadata.name="+common, "metadata.name!="+common)...); s != "" {
		q.values.Set("fieldSelector", s)
	}
	if q.limit = pick(r, 0, 0, 1, 2, 3, 7, 20, 500); q.limit == 1 && q.caller.name == "every" {
		q.limit = 5
	}
	version := pick(r, [2]string{"0"}, [2]string{"0"}, [2]string{u.now[q.of]}, // a state that nobody has listed cannot be proven
		[2]string{u.now[q.of], pick(r, "NotOlderThan", "Exact")}, [2]string{u.old, "Exact"}, [2]string{}, [2]string{})
	for i, name := range []string{"resourceVersion", "resourceVersionMatch"} {
		if version[i] != "" {
			q.values.Set(name, version[i])
		}
	}
	if r.IntN(3) == 0 {
		q.header.Set("Accept-Encoding", "gzip")
	}
	if r.IntN(8) == 0 {
		q.values.Set("pretty", "true")
	}
	return q
}

// check asks a question and compares the answer with the apiserver's lists.
func (u *union) check(ctx context.Context, q question) error {
	want, whole, err := u.direct(ctx, q)
	if err != nil {
		return err
	}
	got, err := u.view(ctx, q, want.items, whole)
	if got == nil || err != nil {
		return err
	}
	if d := differs(want.items, got); d != "" {
		return errors.New(d)
	}
	all, _, err := listed(ctx, u.api, u.adminCaller(), q.request(q.of.path(""), q.values))
	if n := len(got); n > 0 && n < len(all.items) {
		u.parts.Add(1)
	}
	return err
}

// view returns the objects of a list in the view, of all pages. It is nil if the list cannot be
// answered from the cache.
func (u *union) view(ctx context.Context, q question, want []item, whole bool) (items []item, err error) {
	may := map[string]bool{}
	for _, i := range want {
		namespace, _, _ := strings.Cut(i.key, "/")
		may[namespace] = true
	}
	items = []item{}
	values, rv := url.Values{}, ""
	for name := range q.values {
		values.Set(name, q.values.Get(name))
	}
	for {
		if q.limit > 0 {
			values.Set("limit", strconv.Itoa(q.limit))
		}
		a, err := get(ctx, u.proxy.Endpoint, q.caller, q.request("/views/"+q.view+q.of.path(""), values))
		if err != nil {
			return nil, err
		}
		for namespace := range u.marks.shown(a) {
			if !whole && !may[namespace] {
				return nil, fmt.Errorf("shows %s: %d %.1000s", namespace, a.Status, a.Body)
			}
		}
		if a.Status == http.StatusBadRequest && strings.Contains(string(a.Body), "cannot answer such a request") {
			u.refused.Add(1)
			return nil, nil
		}
		if a.Status != http.StatusOK {
			return nil, fmt.Errorf("page after %d: %d %.300s", len(items), a.Status, a.Body)
		}
		u.pages.Add(1)
		page, err := decode(a)
		if err != nil {
			return nil, err
		}
		if err := q.checkPage(page, len(items), len(want), whole); err != nil {
			return nil, err
		}
		if rv != "" && page.ResourceVersion != rv {
			return nil, fmt.Errorf("a page at %s follows one at %s", page.ResourceVersion, rv)
		}
		items, rv = append(items, page.items...), page.ResourceVersion
		if page.Continue == "" {
			return items, nil
		}
		values.Del("resourceVersion")
		values.Del("resourceVersionMatch")
		values.Set("continue", page.Continue)
	}
}

// checkPage checks the size of a page and the number of objects that remain.
func (q question) checkPage(page list, before, visible int, whole bool) error {
	exact := q.values.Get("resourceVersionMatch") == "Exact"
	if rv := q.values.Get("resourceVersion"); q.limit > 0 && len(page.items) > q.limit && (rv != "0" || before > 0) {
		return fmt.Errorf("a page has %d objects, the limit is %d", len(page.items), q.limit)
	} else if exact && page.ResourceVersion != rv {
		return fmt.Errorf("the list is at %s instead of %s", page.ResourceVersion, rv)
	}
	if whole {
		return nil
	}
	selects := q.values.Has("labelSelector") || q.values.Has("fieldSelector")
	switch rest := page.RemainingItemCount; {
	case rest != nil && (selects || page.Continue == ""):
		return fmt.Errorf("%d objects remain, which must not be told", *rest)
	case rest != nil && int(*rest) != visible-before-len(page.items):
		return fmt.Errorf("%d objects remain after %d of %d", *rest, before+len(page.items), visible)
	case rest == nil && page.Continue != "" && !selects:
		return errors.New("the number of objects that remain is missing")
	}
	return nil
}

// direct returns what the caller gets from the apiserver: all namespaces if that is allowed, else
// the union of those that are.
func (u *union) direct(ctx context.Context, q question) (all list, whole bool, err error) {
	if all, whole, err = listed(ctx, u.api, q.caller, q.request(q.of.path(""), q.values)); err != nil || whole {
		return all, whole, err
	}
	if q.of == namespaces {
		all, err = u.directNamespaces(ctx, q)
		return all, false, err
	}
	for _, namespace := range u.namespaces {
		l, _, err := listed(ctx, u.api, q.caller, q.request(q.of.path(namespace), q.values))
		if err != nil {
			return all, false, err
		}
		all.items = append(all.items, l.items...)
	}
	sortItems(all.items)
	return all, false, nil
}

// viewed are the resources of the views.
var viewed = map[string][]resource{"some": {configmaps, pods}, "pods": {pods}, "configs": {configmaps}}

// directNamespaces returns the Namespaces that the caller may get, or in which it may list one of
// the view's resources.
func (u *union) directNamespaces(ctx context.Context, q question) (all list, err error) {
	admin, _, err := listed(ctx, u.api, u.adminCaller(), q.request(q.of.path(""), q.values))
	if err != nil {
		return all, err
	}
	for _, i := range admin.items {
		targets := []string{q.of.path("") + "/" + i.key}
		for _, r := range viewed[q.view] {
			targets = append(targets, r.path(i.key))
		}
		for _, target := range targets {
			a, err := get(ctx, u.api, q.caller, cluster.Get(target))
			if err != nil {
				return all, err
			}
			if a.Status == http.StatusOK {
				all.items = append(all.items, i)
				break
			}
		}
	}
	return all, nil
}
