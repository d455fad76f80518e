//go:build verify

package chart

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// pythonApplication and nodeApplication do the same as application.
const (
	pythonApplication = `
from kubernetes import client, config, watch
config.load_incluster_config()
ns = open("` + cluster.AccountPath + `/namespace").read()
v1 = client.CoreV1Api()
found = v1.list_namespaced_pod(ns)
for p in found.items:
    print("LISTED", p.metadata.name, flush=True)
print("ready", flush=True)
for e in watch.Watch().stream(v1.list_namespaced_pod, ns, resource_version=found.metadata.resource_version):
    print(e["type"], e["object"].metadata.name, flush=True)
`
	nodeApplication = `
const k8s = require('@kubernetes/client-node'), fs = require('fs')
const kc = new k8s.KubeConfig()
kc.loadFromCluster()
const ns = fs.readFileSync('` + cluster.AccountPath + `/namespace', 'utf8')
kc.makeApiClient(k8s.CoreV1Api).listNamespacedPod({namespace: ns}).then(list => {
	list.items.forEach(p => console.log('LISTED', p.metadata.name))
	console.log('ready')
	return new k8s.Watch(kc).watch('/api/v1/namespaces/' + ns + '/pods', {resourceVersion: list.metadata.resourceVersion},
		(type, o) => console.log(type, o.metadata.name), err => console.log('END', err))
}).catch(err => { console.error(err); process.exit(1) })
`
)

// Applications in Python and in JavaScript need no more than one in Go. Their clients come from the
// network.
func TestLanguages(t *testing.T) {
	r := newPodRun(t, fromChart)
	r.createPod("first")
	bin := filepath.Join(cluster.Root(), "bin")
	node, err := exec.LookPath("node")
	must(t, err)
	for name, command := range map[string][]string{
		"python": {filepath.Join(bin, "python-client"), "-c", pythonApplication},
		"node":   {node, "-e", nodeApplication},
	} {
		app := r.container(r.spec.Containers[0], command[0])
		app.Command = command
		app.Env = append(app.Env, "NODE_PATH="+filepath.Join(bin, "node-client", "node_modules"))
		r.reads(app, name)
	}
}
