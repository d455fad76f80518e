package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// pythonReader and nodeReader print a compressed watch up to the line with last.
const (
	pythonReader = `
import ssl, sys, urllib.request, zlib
url, ca, last = sys.argv[1:4]
r = urllib.request.urlopen(urllib.request.Request(url, headers={'Accept-Encoding': 'gzip'}), context=ssl.create_default_context(cafile=ca))
assert r.headers['Content-Encoding'] == 'gzip'
z, seen = zlib.decompressobj(31), b''
while last.encode() not in seen or not seen.endswith(b'\n'):
	part = z.decompress(r.read1())
	sys.stdout.buffer.write(part)
	seen = seen[-100000:] + part
`
	nodeReader = `
const https = require('https'), zlib = require('zlib'), fs = require('fs')
const [url, ca, last] = process.argv.slice(2)
https.get(url, {ca: fs.readFileSync(ca), headers: {'Accept-Encoding': 'gzip'}}, r => {
	if (r.headers['content-encoding'] !== 'gzip') throw new Error('not compressed')
	const z = r.pipe(zlib.createGunzip())
	let seen = Buffer.alloc(0)
	z.on('data', d => {
		seen = Buffer.concat([seen.subarray(-100000), d])
		const ends = seen.includes(last) && seen.at(-1) === 10
		process.stdout.write(d, () => { if (ends) process.exit(0) })
	})
})
`
)

// follower reads watches like one kind of client.
type follower struct {
	*http.Client
	url   string
	plain bool
}

// open sends a watch. Go's transport decompresses its body, unless the follower is plain.
func (f *follower) open(ctx context.Context, target, accept string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+target, nil)
	if err != nil {
		return nil, err
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := f.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK || resp.Uncompressed == f.plain {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s, decompressed %t", resp.Status, resp.Uncompressed)
	}
	return resp.Body, nil
}

// until reads a watch up to the event with last.
func (f *follower) until(ctx context.Context, target, accept, last string) ([]byte, error) {
	body, err := f.open(ctx, target, accept)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var read []byte
	for part := make([]byte, 32<<10); !bytes.Contains(read, []byte(last)); {
		n, err := body.Read(part)
		read = append(read, part[:n]...)
		if err != nil {
			return read, err
		}
	}
	return read, nil
}

func newFollower(t *testing.T, p *cluster.Proxy, http2, plain bool) *follower {
	t.Helper()
	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	transport := &http.Transport{TLSClientConfig: cluster.Trust(p.CA), Protocols: &protocols, DisableCompression: plain}
	t.Cleanup(transport.CloseIdleConnections)
	return &follower{Client: &http.Client{Transport: transport}, url: p.URL, plain: plain}
}

// scribble creates, changes and deletes configmaps at random. The last write creates the configmap last.
func scribble(ctx context.Context, w *clients.World, ns, last string, writes int, random *rand.Rand) error {
	at, exists := w.API.Client().CoreV1().ConfigMaps(ns), map[string]bool{}
	for i := range writes {
		size := random.IntN(3000)
		if random.IntN(50) == 0 {
			size = random.IntN(300_000)
		}
		name := fmt.Sprintf("c-%d", random.IntN(40))
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{
			"write": fmt.Sprint(i), "text": fmt.Sprintf("%x", random.Uint64()) + strings.Repeat("ab", size/2),
		}}
		var err error
		switch {
		case !exists[name]:
			_, err = at.Create(ctx, o, metav1.CreateOptions{})
			exists[name] = true
		case random.IntN(4) == 0:
			err = at.Delete(ctx, name, metav1.DeleteOptions{})
			exists[name] = false
		default:
			_, err = at.Update(ctx, o, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
	}
	_, err := at.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: last}}, metav1.CreateOptions{})
	return err
}

// Clients see the same events through compressed and plain watches, over both protocols, in all
// forms. Go, Python and Node decompress them.
func TestCompressedWatches(t *testing.T) {
	t.Parallel()
	const writes, last = 600, "the-last-one"
	w := sharedWorld(t)
	p := w.FreshProxy(t, "watchCompression: always\ncache: {syncTimeout: 1m}\n") // a feed may take long to start
	ns := w.Namespace(t, "compressed")
	path := "/api/v1/namespaces/" + ns + "/configmaps"
	ctx, cancel := context.WithTimeout(t.Context(), 2*cluster.Limit)
	defer cancel()
	from := clients.ListVersion(t, p.EndpointT(t).GetT(t, path, nil))
	watch := path + "?watch=true&resourceVersion=" + from
	const protobuf, partial = "application/vnd.kubernetes.protobuf;stream=watch", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	readers := map[string]func() ([]byte, error){}
	for _, accept := range []string{"", protobuf, partial} {
		for _, http2 := range []bool{false, true} {
			plain, packed := newFollower(t, p, http2, true), newFollower(t, p, http2, false)
			readers[fmt.Sprint("plain ", accept, http2)] = func() ([]byte, error) { return plain.until(ctx, watch, accept, last) }
			readers[fmt.Sprint("compressed ", accept, http2)] = func() ([]byte, error) { return packed.until(ctx, watch, accept, last) }
		}
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	cluster.MustT(t, os.WriteFile(ca, p.CA, 0o600))
	for program, code := range map[string]string{"python3": pythonReader, "node": nodeReader} {
		if _, err := exec.LookPath(program); err != nil {
			t.Logf("NOT CHECKED: %s is not installed", program)
			continue
		}
		file := filepath.Join(t.TempDir(), program)
		cluster.MustT(t, os.WriteFile(file, []byte(code), 0o600))
		readers[program] = func() ([]byte, error) {
			out, err := exec.CommandContext(ctx, program, file, p.URL+watch, ca, last).Output()
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				err = fmt.Errorf("%w: %.1000s", err, exit.Stderr)
			}
			return out, err
		}
	}
	type outcome struct {
		name string
		read []byte
		err  error
	}
	outcomes := make(chan outcome, len(readers))
	for name, read := range readers {
		go func() {
			got, err := read()
			outcomes <- outcome{name, got, err}
		}()
	}
	cluster.MustT(t, scribble(ctx, w, ns, last, writes, rand.New(rand.NewPCG(cluster.Seed(), 0))))
	got := map[string][]byte{}
	for range readers {
		o := <-outcomes
		if o.err != nil {
			t.Errorf("%s: %v after %d bytes", o.name, o.err, len(o.read))
		}
		got[o.name] = o.read
	}
	for name, read := range got {
		want := got["plain false"]
		for _, accept := range []string{protobuf, partial} {
			if strings.Contains(name, accept) {
				want = got["plain "+accept+"false"]
			}
		}
		if !bytes.Equal(read, want) {
			t.Errorf("%s: %d bytes differ from %d bytes of the plain watch", name, len(read), len(want))
		}
	}
	if n := bytes.Count(got["plain false"], []byte("\n")); n != writes+1 {
		t.Errorf("%d events after %d writes", n, writes+1)
	}
}
