package wire

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// installed skips the test if a program is not installed, because `make test` needs only Go, git,
// gcc and make. H2spec and the differential test of proxy/h2 cover the protocol in any case.
func installed(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("%s is not installed", program)
	}
	return path
}

// nodeClient opens a watch and sends many concurrent requests, on one connection of Node's http2.
// It prints the results as JSON. Its window is Node's default, 64 KiB.
const nodeClient = `
const http2 = require('http2'), fs = require('fs')
const [url, ca, path] = process.argv.slice(2)
const c = http2.connect(url, {ca: fs.readFileSync(ca)})
c.on('error', e => { console.error(e); process.exit(1) })
const ask = (headers, body) => new Promise((resolve, reject) => {
	const s = c.request(headers, {endStream: body === undefined})
	let status, text = ''
	s.setEncoding('utf8')
	s.on('response', h => { status = h[':status'] })
	s.on('data', d => { text += d })
	s.on('end', () => resolve({status, text}))
	s.on('error', reject)
	if (body !== undefined) s.end(body)
})
async function main() {
	const seen = {}
	const watch = c.request({':path': path + '?watch=1&resourceVersion=0'})
	watch.setEncoding('utf8')
	let events = '', canceled = false
	const came = new Promise(resolve => watch.on('data', d => {
		events += d
		if (events.includes('"name":"from-node"') && events.endsWith('\n')) resolve()
	}))
	watch.on('error', e => { if (!canceled) throw e })
	const made = await ask({':method': 'POST', ':path': path, 'content-type': 'application/json'},
		JSON.stringify({apiVersion: 'v1', kind: 'ConfigMap', metadata: {name: 'from-node'}, data: {key: 'x'.repeat(300000)}}))
	seen.created = made.status
	await came
	canceled = true
	watch.close(http2.constants.NGHTTP2_CANCEL)
	const lists = await Promise.all(Array.from({length: 50}, () => ask({':path': path + '?resourceVersion=0'})))
	seen.lists = lists.filter(l => l.status === 200 && JSON.parse(l.text).items.some(i => i.metadata.name === 'from-node')).length
	seen.head = (await ask({':method': 'HEAD', ':path': path})).status
	seen.missing = (await ask({':path': path + '/nothing'})).status
	await new Promise((resolve, reject) => c.ping(e => e ? reject(e) : resolve()))
	seen.streams = c.state.nextStreamID
	c.close(() => console.log(JSON.stringify(seen)))
}
main().catch(e => { console.error(e); process.exit(1) })
`

// On one connection, Node's http2 sends 50 concurrent lists, an upload and a watch that it cancels.
func TestNode(t *testing.T) {
	node := installed(t, "node")
	w := sharedWorld(t)
	dir := t.TempDir()
	ca, script := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "client.js")
	for path, content := range map[string][]byte{ca: w.Proxy.CA, script: []byte(nodeClient)} {
		cluster.MustT(t, os.WriteFile(path, content, 0o600))
	}
	ns := w.Namespace(t, "node")
	out, err := exec.CommandContext(t.Context(), node, script, w.Proxy.URL, ca, "/api/v1/namespaces/"+ns+"/configmaps").Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var seen struct{ Created, Lists, Head, Missing, Streams int }
	if err := json.Unmarshal(out, &seen); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// The apiserver answers HEAD of a resource with 405.
	if got, want := fmt.Sprint(seen.Created, seen.Lists, seen.Head, seen.Missing), fmt.Sprint(201, 50, 405, 404); got != want {
		t.Errorf("Node has seen %s instead of %s", got, want)
	}
}
