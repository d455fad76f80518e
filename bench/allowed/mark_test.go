package allowed

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// marks numbers the namespaces.
type marks struct {
	sync.Mutex
	names []string
}

// add returns the mark of a new namespace, which may be reserved.
func (m *marks) add(namespace string) string {
	m.Lock()
	defer m.Unlock()
	i := slices.Index(m.names, namespace)
	if i < 0 {
		i = len(m.names)
		m.names = append(m.names, namespace)
	}
	return markOf(i)
}

func markOf(i int) string { return fmt.Sprintf("zq%03dq", i) }

// reserve returns a name with its mark for a new namespace.
func (m *marks) reserve(prefix string) (namespace string) {
	m.Lock()
	defer m.Unlock()
	namespace = prefix + markOf(len(m.names))
	m.names = append(m.names, namespace)
	return namespace
}

func (m *marks) of(n int) string {
	m.Lock()
	defer m.Unlock()
	if n < len(m.names) {
		return m.names[n]
	}
	return ""
}

var (
	marked = regexp.MustCompile(`zq(\d{3,})q`)
	tokens = regexp.MustCompile(`[A-Za-z0-9_-]{24,}`)
)

// in returns the namespaces whose marks occur in a text, also in its tokens.
func (m *marks) in(text []byte) map[string]bool {
	found := map[string]bool{}
	m.collect(text, found)
	for _, token := range tokens.FindAll(text, -1) {
		if plain, err := base64.RawURLEncoding.DecodeString(string(token)); err == nil {
			m.collect(plain, found)
		}
	}
	return found
}

func (m *marks) collect(text []byte, found map[string]bool) {
	for _, mark := range marked.FindAllSubmatch(text, -1) {
		if n, err := strconv.Atoi(string(mark[1])); err == nil {
			found[m.of(n)] = true
		}
	}
}

// shown returns the namespaces whose marks occur in an answer's headers or body.
func (m *marks) shown(a cluster.Answer) map[string]bool {
	var all bytes.Buffer
	_ = a.Header.Write(&all)
	all.Write(a.Body)
	return m.in(all.Bytes())
}

// unzipped returns an answer with its body decompressed.
func unzipped(a cluster.Answer) (cluster.Answer, error) {
	if a.Header.Get("Content-Encoding") != "gzip" {
		return a, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(a.Body))
	if err != nil {
		return a, err
	}
	a.Body, err = io.ReadAll(r)
	return a, err
}
