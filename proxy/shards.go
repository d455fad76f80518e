package proxy

import (
	"net/http"
	"net/url"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/query"
	"github.com/watchproxy/watchproxy/proxy/read"
)

// shards reports whether a request selects a shard in a view that does so itself. Upstream must not
// answer it: it may ignore the selector, and would then show, or delete, other shards, too. It also
// ignores the malformed parts of a query, which may be the selector.
func shards(req *exchange.Request, rt *exchange.Route) bool {
	if !req.View.Shards() || !rt.Resource || !slices.Contains([]string{"list", "watch", "deletecollection"}, rt.Verb) {
		return false
	}
	values, err := url.ParseQuery(req.Query)
	return err != nil || slices.ContainsFunc(values["shardSelector"], func(selector string) bool { return selector != "" })
}

// refuseDeletion refuses to delete a shard.
func refuseDeletion(req *exchange.Request) *exchange.Response {
	refusal := req.Fail(exchange.Failure(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
		"the view "+req.View.Name+" cannot delete a shard, because an apiserver may ignore the shardSelector and delete all objects: use the address without "+
			exchange.ViewPrefix+req.View.Name+" if yours does not"), exchange.FromProxy)
	refusal.Header.Set("Allow", "GET")
	return refusal
}

// failShard answers a list or watch of a shard that the cache cannot answer. If caches is true, there
// may be a cache later.
func failShard(req *exchange.Request, v read.Verdict, caches bool) *exchange.Response {
	if v.Expired != nil {
		return v.Expired
	}
	return req.Fail(shardFailure(req, v.Reason, caches), exchange.FromProxy)
}

func shardFailure(req *exchange.Request, reason read.Reason, caches bool) metav1.Status {
	values, err := url.ParseQuery(req.Query)
	if err != nil {
		return exchange.BadRequest("malformed query: " + err.Error())
	}
	if selector := values.Get("shardSelector"); selector != "" {
		if _, err = query.ParseShard(selector); err != nil {
			return exchange.Failure(http.StatusInternalServerError, metav1.StatusReasonUnknown, err.Error()) // as kube-apiserver
		}
	}
	message := "the view " + req.View.Name + " selects shards only from the cache, which cannot answer such a request: " + string(reason)
	switch {
	case reason == read.TooOld:
		return exchange.Expired("The resourceVersion for the provided list is too old.")
	case reason.Stale(), reason == read.TooLarge, reason == read.Uncached && caches:
		return exchange.RetryLater(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, message)
	case reason == read.Credentials:
		return exchange.Failure(http.StatusForbidden, metav1.StatusReasonForbidden, message+
			", as the proxy does not know the rights of the sender: authentication.mode delegated lets it ask the apiserver")
	case reason == read.Form, reason == read.Table:
		return exchange.Failure(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, message)
	}
	return exchange.BadRequest(message)
}
