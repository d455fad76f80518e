package linearizability

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/tidwall/gjson"

	"github.com/watchproxy/watchproxy/bench/cluster"
	"github.com/watchproxy/watchproxy/bench/conformance"
)

// reader reads a ledger's objects through the proxy.
type reader struct {
	ledger *ledger
	proxy  *cluster.Endpoint
	random *rand.Rand
}

// consistentRead is a kind of read. Its answer must show all writes that were acknowledged before
// the request was sent.
type consistentRead struct {
	name   string
	choose func(*reader) selection
	read   func(*reader, selection) (sight, error)
}

var consistentReads = []consistentRead{
	{"list", (*reader).everything, (*reader).list},
	{"list of a namespace", (*reader).aNamespace, (*reader).list},
	{"list by label", (*reader).aColour, (*reader).list},
	{"pages", (*reader).some, (*reader).pages},
	{"get", (*reader).single, (*reader).get},
	{"watch", (*reader).some, (*reader).watch},
}

func (*reader) everything() selection { return selection{anything, anything, anything} }

func (r *reader) aNamespace() selection {
	return selection{r.random.IntN(len(r.ledger.namespaces)), anything, anything}
}

func (r *reader) aColour() selection {
	return selection{r.random.IntN(1+len(r.ledger.namespaces)) - 1, r.random.IntN(len(colours)), anything}
}

func (r *reader) single() selection {
	among := len(r.ledger.objects)
	if r.random.IntN(2) == 0 {
		among = scribes // frequently written objects; gets of the same object may share an answer
	}
	return selection{anything, anything, r.random.IntN(among)}
}

func (r *reader) some() selection {
	return []func(*reader) selection{(*reader).everything, (*reader).aNamespace, (*reader).aColour}[r.random.IntN(3)](r)
}

// target is the path and query of a read.
func (r *reader) target(of selection, query url.Values) string {
	path := "/api/v1/configmaps"
	namespace, name := of.namespace, ""
	if of.object != anything {
		e := r.ledger.objects[of.object]
		namespace, name = e.namespace, "/"+e.name
	}
	if namespace != anything {
		path = "/api/v1/namespaces/" + r.ledger.namespaces[namespace] + "/configmaps"
	}
	if of.colour != anything {
		query.Set("labelSelector", "colour="+colours[of.colour])
	}
	return path + name + "?" + query.Encode()
}

// errAnswer is the error for an answer that a read must not get.
var errAnswer = errors.New("unexpected answer")

// fetch sends a request and reads the whole answer.
func (r *reader) fetch(target string) (status int, body []byte, err error) {
	got, err := r.proxy.Ask(context.Background(), cluster.Get(target))
	return got.Status, got.Body, err
}

func (r *reader) sight(of selection) sight {
	return sight{of: of, shown: make([]uint32, len(r.ledger.objects))}
}

// see adds an object to the sight. It ignores objects that are not in the ledger.
func (r *reader) see(s *sight, object gjson.Result) error {
	i, ours := r.ledger.places[object.Get("metadata.namespace").Str+"/"+object.Get("metadata.name").Str]
	if !ours {
		return nil
	}
	if s.shown[i] != 0 {
		return fmt.Errorf("%w: an object twice: %.500s", errAnswer, object.Raw)
	}
	w, err := writeOf(object)
	s.shown[i] = w.n
	return err
}

// page reads one page of a list and returns the continue token.
func (r *reader) page(s *sight, query url.Values) (token string, err error) {
	target := r.target(s.of, query)
	status, body, err := r.fetch(target)
	if err != nil {
		return "", err
	}
	if status != http.StatusOK || !gjson.ValidBytes(body) {
		return "", fmt.Errorf("%w: %s: %d %.500s", errAnswer, target, status, body)
	}
	list := gjson.ParseBytes(body)
	version, err := strconv.ParseUint(list.Get("metadata.resourceVersion").Str, 10, 64)
	if err != nil {
		return "", fmt.Errorf("%s: resourceVersion: %w", target, err)
	}
	if s.version != 0 && s.version != version {
		return "", fmt.Errorf("%w: %s: a page at resourceVersion %d after one at %d", errAnswer, target, version, s.version)
	}
	s.version = version
	list.Get("items").ForEach(func(_, item gjson.Result) bool {
		err = r.see(s, item)
		return err == nil
	})
	return list.Get("metadata.continue").Str, err
}

func (r *reader) list(of selection) (sight, error) {
	s := r.sight(of)
	token, err := r.page(&s, url.Values{})
	if token != "" {
		return s, fmt.Errorf("%w: a whole list is to be continued", errAnswer)
	}
	return s, err
}

// listAny lists a state that may be old.
func (r *reader) listAny(of selection) (sight, error) {
	s := r.sight(of)
	_, err := r.page(&s, url.Values{"resourceVersion": {"0"}})
	return s, err
}

// pages lists a few objects at a time. All pages must show the state of the first page, even if the
// reader requests them late.
func (r *reader) pages(of selection) (sight, error) {
	s := r.sight(of)
	eighth := len(r.ledger.objects)/8 + 1
	limit := strconv.Itoa(eighth + r.random.IntN(4*eighth))
	token, err := r.page(&s, url.Values{"limit": {limit}})
	for err == nil && token != "" {
		const slow = 4 // one in four pauses is long
		if r.random.IntN(slow) == 0 {
			time.Sleep(time.Duration(r.random.Int64N(int64(pageInterval))))
		}
		token, err = r.page(&s, url.Values{"limit": {limit}, "continue": {token}})
	}
	return s, err
}

// pageInterval limits the pause between two pages, so that the cache moves on.
const pageInterval = 300 * time.Millisecond

func (r *reader) get(of selection) (sight, error) {
	s := r.sight(of)
	target := r.target(of, url.Values{})
	status, body, err := r.fetch(target)
	switch {
	case err != nil:
		return s, err
	case status == http.StatusNotFound:
		return s, nil
	case status != http.StatusOK || !gjson.ValidBytes(body):
		return s, fmt.Errorf("%w: %s: %d %.500s", errAnswer, target, status, body)
	}
	return s, r.see(&s, gjson.ParseBytes(body))
}

// watch reads the initial state of a watch and then leaves.
func (r *reader) watch(of selection) (sight, error) {
	ctx, cancel := context.WithTimeout(context.Background(), cluster.Limit)
	defer cancel()
	s := r.sight(of)
	// A relay delays streams without a timeout, but must not delay this one if it is forwarded.
	target := r.target(of, url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"}, "timeoutSeconds": {"3600"},
		"sendInitialEvents": {"true"}, "resourceVersionMatch": {"NotOlderThan"},
	})
	resp, err := r.proxy.Watch(ctx, cluster.Get(target))
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	for e, err := range conformance.Events(resp) {
		switch {
		case err != nil:
			return s, fmt.Errorf("%s: %w", target, err)
		case e.InitialEnd:
			s.version = e.RV
			return s, nil
		case e.Type != "ADDED":
			return s, fmt.Errorf("%w: %v", errAnswer, e)
		}
		if err := r.see(&s, gjson.GetBytes(e.Line, "object")); err != nil {
			return s, err
		}
	}
	return s, fmt.Errorf("%s: %w", target, io.EOF)
}
