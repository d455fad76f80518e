package hostile

import (
	"net/http"
	"strings"
	"time"
)

// behaviour is the behaviour of some hostile clients. It is a row of the table.
type behaviour struct {
	name string
	// clients is the number of clients in a short run, and most is the number in a long run. If
	// most is 0, the number in a long run is ten times clients.
	clients, most int
	// least is the minimum number of turns before the row may end, because fewer turns would show
	// nothing.
	least int64
	// rate is the number of turns per second of all clients together. A turn is a request, a frame
	// or a bundle of frames.
	rate int
	// do runs one client. It returns when its attack is over, see attack.turn and attack.stay.
	do func(a *attack, client int)
	// beside runs concurrently with the clients. It calls ready when the clients may start.
	beside func(a *attack, ready func())
	// never lists prefixes of codes that no response may have.
	never []string
	// after checks the proxy after the attackers have left.
	after func(a *attack) error
	// lingers is true if in a long run the clients leave silently. Their sockets stay open, and the
	// proxy must detect on its own that they have left.
	lingers bool
	// small gives the clients small receive buffers, for clients that do not read.
	small bool
}

const refusedOnly = "1 2 3" // prefixes of codes that a refused client must not receive

func (b behaviour) refused() behaviour {
	b.never = strings.Fields(refusedOnly)
	return b
}

func behaviours() (all []behaviour) {
	for _, family := range [][]behaviour{
		// This row is first, because after a minute upstream drops its history from before the
		// caches.
		watches(),
		readers(), framing(), http2Floods(), http2Windows(), requests(), selectors(), reviews(), tunnels(),
	} {
		all = append(all, family...)
	}
	return all
}

// count returns the number of clients.
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

// every returns the time between turns.
func (b behaviour) every() time.Duration {
	if b.rate == 0 {
		return time.Millisecond
	}
	return time.Second / time.Duration(b.rate)
}

const (
	attackedPodsPath   = "/api/v1/namespaces/" + attackerSpace + "/pods"
	attackedConfigMaps = "/api/v1/namespaces/" + attackerSpace + "/configmaps"
	deniedPodsPath     = "/api/v1/namespaces/" + victimSpace + "/pods"
	cachedList         = attackedPodsPath + "?resourceVersion=0"
	cachedWatch        = attackedPodsPath + "?watch=true&resourceVersion=0&timeoutSeconds=600"
	forwardedList      = attackedPodsPath // with a selector that only upstream supports
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
