package clients

import (
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
)

// relay stands between the proxy and the apiserver, so that the way can be cut while both are well.
type relay struct {
	to       string
	listener net.Listener
	running  sync.WaitGroup
	frozen   sync.RWMutex // held while nothing passes

	mu struct {
		sync.Mutex
		cut   bool
		conns map[net.Conn]struct{}
	}
}

// startRelay returns a relay to the apiserver and the path of a kubeconfig that leads there.
func startRelay(t *testing.T, w *world) (r *relay, kubeconfig string) {
	t.Helper()
	target, err := url.Parse(w.api.URL)
	if err != nil {
		t.Fatal(err)
	}
	r = &relay{to: target.Host}
	r.mu.conns = map[net.Conn]struct{}{}
	if r.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	r.running.Go(r.accept)
	t.Cleanup(func() {
		r.listener.Close() // a frozen relay has to be thawed before
		r.cut()
		r.running.Wait()
	})
	content, err := os.ReadFile(w.api.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return r, file(t, strings.ReplaceAll(string(content), r.to, r.listener.Addr().String()))
}

func (r *relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.running.Go(func() { r.join(client) })
	}
}

func (r *relay) join(client net.Conn) {
	defer r.drop(client)
	if !r.keep(client) {
		return
	}
	server, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer r.drop(server)
	if !r.keep(server) {
		return
	}
	r.running.Go(func() {
		defer client.Close()
		r.pass(client, server)
	})
	r.pass(server, client)
}

// pass copies what comes, unless nothing may.
func (r *relay) pass(to io.Writer, from io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		r.frozen.RLock()
		_, err = to.Write(buf[:n])
		r.frozen.RUnlock()
		if err != nil {
			return
		}
	}
}

// keep remembers a connection, unless the way is cut.
func (r *relay) keep(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.conns[c] = struct{}{}
	return !r.mu.cut
}

func (r *relay) drop(c net.Conn) {
	c.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.conns, c)
}

// cut cuts all connections and takes no new ones, until mend.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.cut = true
	for c := range r.mu.conns {
		c.Close()
	}
}

func (r *relay) mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.cut = false
}
