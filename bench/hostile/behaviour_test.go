package hostile

import (
	"fmt"
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
	// rate is the number of turns per second of all clients together. A turn is a request, a frame
	// or a bundle of frames.
	rate int
	// do runs one client. It returns when its attack is over, see attack.turn and attack.stay.
	do func(a *attack, client int)
	// beside runs concurrently with the clients.
	beside func(a *attack)
	// never lists prefixes of codes that no response may have.
	never []string
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
		watches(), http2Floods(), requests(), selectors(), reviews(), reviewed(),
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
	labelledName       = "labelled" // a ConfigMap with 20,000 labels
	deniedPodsPath     = "/api/v1/namespaces/" + victimSpace + "/pods"
	cachedList         = attackedPodsPath + "?resourceVersion=0"
	table              = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
	cachedWatch        = attackedPodsPath + "?watch=true&resourceVersion=0&timeoutSeconds=600"
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

// made returns a name of an object that does not exist.
func made(i int64) string { return fmt.Sprintf("made-up-%d", i) }
