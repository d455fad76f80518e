package allowed

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"regexp"
	"strconv"
	"sync"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// marks numbers the namespaces.
type marks struct {
	sync.Mutex
	names []string
}

// add returns the mark of a new namespace. Without a name, the namespace is named by its mark.
func (m *marks) add(name string) (namespace, mark string) {
	m.Lock()
	defer m.Unlock()
	mark = fmt.Sprintf("zq%03dq", len(m.names))
	namespace = cmp.Or(name, "ns-"+mark)
	m.names = append(m.names, namespace)
	return namespace, mark
}

var (
	marked = regexp.MustCompile(`zq(\d{3,})q`)
	tokens = regexp.MustCompile(`[A-Za-z0-9_-]{24,}`)
)

// shown returns the namespaces whose marks occur in an answer's headers or body, also in its tokens.
func (m *marks) shown(a cluster.Answer) map[string]bool {
	var all bytes.Buffer
	_ = a.Header.Write(&all)
	all.Write(a.Body)
	found := map[string]bool{}
	m.collect(all.Bytes(), found)
	for _, token := range tokens.FindAll(all.Bytes(), -1) {
		if plain, err := base64.RawURLEncoding.DecodeString(string(token)); err == nil {
			m.collect(plain, found)
		}
	}
	return found
}

func (m *marks) collect(text []byte, found map[string]bool) {
	m.Lock()
	defer m.Unlock()
	for _, mark := range marked.FindAllSubmatch(text, -1) {
		if n, err := strconv.Atoi(string(mark[1])); err == nil && n < len(m.names) {
			found[m.names[n]] = true
		}
	}
}
