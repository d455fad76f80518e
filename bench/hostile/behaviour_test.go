package hostile

import (
	"net/http"
	"strings"
	"time"
)

// behaviour is what a crowd of hostile clients does, a row of the table.
type behaviour struct {
	name string
	// clients is how many there are in the short run, most how many at length; 0 is ten times as
	// many.
	clients, most int
	// least is how much has to be sent before the row is over: fewer would show nothing.
	least int64
	// rate is how many requests or frames, or bundles of them, all clients together begin per
	// second.
	rate int
	// do is what one of them does. It returns when its attack is over, see attack.turn and
	// attack.stay.
	do func(a *attack, client int)
	// on is whom they attack; nil is the front.
	on func(w *world) *target
	// beside goes on beside the clients, which begin when it is ready.
	beside func(a *attack, ready func())
	// never are the beginnings of codes that no answer may have.
	never []string
	// after checks the proxy after the attackers have left.
	after func(a *attack) error
	// lingers tells that in a long run the clients leave silently: their sockets stay open, and the
	// proxy must detect this by itself.
	lingers bool
	// small is for clients that do not read: they have small buffers for what comes.
	small bool
}

const refusedOnly = "1 2 3" // codes of answers that are none to somebody who must be refused

func (b behaviour) refused() behaviour {
	b.never = strings.Fields(refusedOnly)
	return b
}

func behaviours() (all []behaviour) {
	for _, family := range [][]behaviour{
		watches(), // first: upstream forgets its history from before the caches after a minute
		loris(), readers(), framing(), http2Floods(), http2Windows(), requests(), selectors(), reviews(), tunnels(),
		crossSite(), descriptors(),
	} {
		all = append(all, family...)
	}
	return all
}

// count is how many clients there are.
func (b behaviour) count() int {
	switch {
	case !atLength():
		return b.clients
	case b.most > 0:
		return b.most
	}
	const times = 10
	return b.clients * times
}

// every is the time between turns.
func (b behaviour) every() time.Duration {
	if b.rate == 0 {
		return time.Millisecond
	}
	return time.Second / time.Duration(b.rate)
}

func local(w *world) *target { return w.local }

func few(w *world) *target { return w.few }

const (
	attackedPodsPath   = "/api/v1/namespaces/" + attackerSpace + "/pods"
	attackedConfigMaps = "/api/v1/namespaces/" + attackerSpace + "/configmaps"
	deniedPodsPath     = "/api/v1/namespaces/" + victimSpace + "/pods"
	cachedList         = attackedPodsPath + "?resourceVersion=0"
	cachedWatch        = attackedPodsPath + "?watch=true&resourceVersion=0&timeoutSeconds=600"
	forwardedList      = attackedPodsPath // without a cache's resourceVersion, exact and with a selector that only upstream knows
	forwardedWatch     = cachedWatch + "&unknown=1"
)

// bearer returns the header of a client with a token.
func bearer(token string) http.Header {
	return http.Header{"Authorization": {"Bearer " + token}}
}

func asAttacker(fields ...string) http.Header {
	h := bearer(tokenOf(attackerUser))
	for i := 0; i+1 < len(fields); i += 2 {
		h.Add(fields[i], fields[i+1])
	}
	return h
}
