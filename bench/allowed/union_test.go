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

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/workload"
)

// A list in a view has the objects that its sender gets from each namespace, and no others.
func TestUnion(t *testing.T) {
	w := sharedWorld(t)
	u := newUnion(t, w)
	const questions = 40
	var all []question
	for range questions {
		all = append(all, u.draw())
	}
	const atOnce = 3
	errs := make([]error, len(all))
	_ = workload.Parallel(t.Context(), len(all), atOnce, func(ctx context.Context, i int) error {
		if err := u.check(ctx, all[i]); err != nil {
			errs[i] = fmt.Errorf("%v:\n%w", all[i], err)
		}
		return nil
	})
	const shown = 5
	failed := 0
	for _, err := range errs {
		if err == nil {
			continue
		}
		if failed++; failed <= shown {
			t.Error(err)
		}
	}
	if failed > shown {
		t.Errorf("%d of %d answers are wrong", failed, len(all))
	}
	t.Logf("%d lists; %d show a part of the objects, in all %d; %d pages; %d cannot be answered", len(all), u.parts.Load(), u.items.Load(), u.pages.Load(), u.refused.Load())
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
	callers    []caller
	old        string              // a resourceVersion before the changes
	now        map[resource]string // resourceVersions of the last changes

	items, parts, pages, refused atomic.Int64
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
func (q question) request(target string, more url.Values) cluster.Request {
	values := url.Values{}
	for _, from := range []url.Values{q.values, more} {
		for name := range from {
			values.Set(name, from.Get(name))
		}
	}
	return cluster.Request{Target: target + "?" + values.Encode(), Header: q.header.Clone(), Protocol: q.http}
}

const (
	inProtobuf = "application/vnd.kubernetes.protobuf"
	inJSON     = "application/json"
	partial    = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	inTable    = "application/json;as=Table;g=meta.k8s.io;v=v1"
)

func pick[T any](random *rand.Rand, of ...T) T { return of[random.IntN(len(of))] }

// draw returns a random question.
func (u *union) draw() question {
	r := u.random
	some := func() string { return pick(r, u.namespaces...) }
	q := question{
		caller: pick(r, u.callers...), view: pick(r, "mine", "mine", "some", "pods", "configs"), values: url.Values{},
		of: pick(r, configmaps, configmaps, configmaps, pods, pods, widgets, namespaces), http: pick(r, cluster.HTTP2, cluster.HTTP2, cluster.HTTP2, cluster.HTTP1),
	}
	if q.of == widgets {
		q.view = "mine"
	} else if q.view == "pods" && q.of == configmaps || q.view == "configs" && q.of == pods {
		q.view = "some"
	}
	if s := pick(r, "", "", "", "app=web", "app in (web,db)", "!app", "app!=db", "none=such"); s != "" {
		q.values.Set("labelSelector", s)
	}
	fields := []string{"", "", "", "metadata.name=" + common, "metadata.name!=" + common}
	switch q.of {
	case namespaces:
		fields = append(fields, "metadata.name="+some(), "metadata.name!="+some())
	default:
		fields = append(fields, "metadata.namespace="+some(), "metadata.namespace!="+some(), "metadata.namespace="+some()+",metadata.name="+common)
	}
	if s := pick(r, fields...); s != "" {
		q.values.Set("fieldSelector", s)
	}
	if q.limit = pick(r, 0, 0, 1, 2, 3, 7, 20, 500); q.limit == 1 && q.caller.name == "every" {
		q.limit = 5
	}
	switch r.IntN(7) {
	case 0, 1:
		q.values.Set("resourceVersion", "0")
	case 2:
		q.values.Set("resourceVersion", u.now[q.of])
	case 3: // a state that nobody has listed cannot be proven
		q.values.Set("resourceVersion", u.now[q.of])
		q.values.Set("resourceVersionMatch", pick(r, "NotOlderThan", "Exact"))
	case 4:
		q.values.Set("resourceVersion", u.old)
		q.values.Set("resourceVersionMatch", "Exact")
	}
	accept := pick(r, inJSON, inJSON, inProtobuf+","+inJSON, inJSON+partial, inTable, inProtobuf+partial)
	q.header = http.Header{"Accept": {accept}}
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
	may := map[string]bool{}
	for _, i := range want.items {
		namespace, _, _ := strings.Cut(i.key, "/")
		may[namespace] = true
	}
	got, err := u.view(ctx, q, may, whole, len(want.items))
	if err != nil {
		return err
	}
	if got == nil {
		u.refused.Add(1)
		return nil
	}
	if d := differs(want.items, got); d != "" {
		return errors.New(d)
	}
	all, _, err := listed(ctx, u.api, u.adminCaller(), q.request(q.of.path(""), nil))
	if err != nil {
		return err
	}
	if n := len(got); n > 0 && n < len(all.items) {
		u.parts.Add(1)
	}
	u.items.Add(int64(len(got)))
	return nil
}

// view returns the objects of a list in the view, of all pages. It is nil if the list cannot be
// answered from the cache.
func (u *union) view(ctx context.Context, q question, may map[string]bool, whole bool, visible int) (items []item, err error) {
	items = []item{}
	rv, token := "", ""
	for {
		more := url.Values{}
		if q.limit > 0 {
			more.Set("limit", strconv.Itoa(q.limit))
		}
		asked := q
		if token != "" {
			more.Set("continue", token)
			asked.values = url.Values{}
			for _, name := range []string{"labelSelector", "fieldSelector"} {
				if q.values.Has(name) {
					asked.values.Set(name, q.values.Get(name))
				}
			}
		}
		a, err := get(ctx, u.proxy.Endpoint, q.caller, asked.request("/views/"+q.view+q.of.path(""), more))
		if err != nil {
			return nil, err
		}
		if !whole {
			for namespace := range u.marks.shown(a) {
				if !may[namespace] {
					return nil, fmt.Errorf("shows %s: %d %.1000s", namespace, a.Status, a.Body)
				}
			}
		}
		if a.Status == http.StatusBadRequest && strings.Contains(string(a.Body), "cannot answer such a request") {
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
		if err := q.checkPage(page, len(items), visible, whole); err != nil {
			return nil, err
		}
		if rv != "" && page.ResourceVersion != rv {
			return nil, fmt.Errorf("a page at %s follows one at %s", page.ResourceVersion, rv)
		}
		items, rv, token = append(items, page.items...), page.ResourceVersion, page.Continue
		if token == "" {
			return items, nil
		}
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
	if all, whole, err = listed(ctx, u.api, q.caller, q.request(q.of.path(""), nil)); err != nil || whole {
		return all, whole, err
	}
	if q.of == namespaces {
		all, err = u.directNamespaces(ctx, q)
		return all, false, err
	}
	for _, namespace := range u.namespaces {
		l, _, err := listed(ctx, u.api, q.caller, q.request(q.of.path(namespace), nil))
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
	admin, _, err := listed(ctx, u.api, u.adminCaller(), q.request(q.of.path(""), nil))
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

// spread returns names in which the order of keys is not that of names: a-b/x is before a/x.
func spread(random *rand.Rand, n int, prefix string) []string {
	names := []string{"a", "a-b", "ab", "a0", "a-0", "a--b", "b", "b-a", "ba"}
	for i := range names {
		names[i] = prefix + names[i]
	}
	const letters = "ab0z-"
	for len(names) < n {
		name := prefix
		for range 1 + random.IntN(4) {
			name += string(letters[random.IntN(len(letters))])
		}
		if !strings.HasSuffix(name, "-") && name != "" && name[0] != '-' && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
