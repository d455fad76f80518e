package chart

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// podRun runs the containers of an application's pod as processes. Volumes are directories.
type podRun struct {
	*testing.T
	api      *cluster.APIServer
	ns       string
	account  string // what the kubelet mounts
	volumes  map[string]string
	spec     corev1.PodSpec
	listen   string
	adminURL string
}

const applicationAccount = "application"

// newPodRun starts the sidecar of a pod in a namespace whose service account may read pods there.
func newPodRun(t *testing.T, pod func(r *podRun)) *podRun {
	t.Helper()
	r := &podRun{T: t, api: sharedWorld(t).api, volumes: map[string]string{}, account: t.TempDir(), listen: freeAddress(t)}
	r.adminURL = "http://" + freeAddress(t)
	r.ns = r.api.NamespaceT(t, cluster.UniqueName("incluster"))
	ctx := t.Context()
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: applicationAccount}}
	_, err := r.api.Client().CoreV1().ServiceAccounts(r.ns).Create(ctx, sa, metav1.CreateOptions{})
	must(t, err)
	user := "system:serviceaccount:" + r.ns + ":" + applicationAccount
	must(t, r.api.Allow(ctx, r.ns, applicationAccount, cluster.Users(user),
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}}))
	must(t, r.api.AwaitRights(ctx, user, authorizationv1.ResourceAttributes{Namespace: r.ns, Verb: "watch", Resource: "pods"}))
	token, err := r.api.Client().CoreV1().ServiceAccounts(r.ns).CreateToken(ctx, applicationAccount, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	for name, content := range map[string][]byte{"token": []byte(token.Status.Token), "ca.crt": r.api.CA, "namespace": []byte(r.ns)} {
		must(t, os.WriteFile(filepath.Join(r.account, name), content, 0o600))
	}
	pod(r)
	binary, err := cluster.BuildProxy(ctx, true)
	must(t, err)
	sidecar := r.container(r.spec.InitContainers[0], binary)
	sidecar.Ready = "watchproxy ready: "
	_, err = sidecar.Start(ctx)
	must(t, err)
	t.Cleanup(sidecar.Kill)
	cluster.Eventually(t, "the sidecar is ready", func() bool {
		_, status := r.ask("/readyz")
		return status == 200
	})
	return r
}

// fromChart is the pod of an application whose chart embeds the sidecar, with the example's values.
func fromChart(r *podRun) {
	r.Helper()
	values := readYAML[map[string]any](r.T, filepath.Join(chartDir(), "values-sidecar.yaml"))
	config := values["config"].(map[string]any)
	config["listen"], config["adminListen"] = r.listen, r.adminListen()
	all := render(r.T, values)
	r.spec = as[appsv1.Deployment](r.T, all.one(r.T, "Deployment")).Spec.Template.Spec
	r.mountVolumes(as[corev1.ConfigMap](r.T, all.one(r.T, "ConfigMap")))
}

// fromYAML is the pod of the example without Helm.
func fromYAML(r *podRun) {
	r.Helper()
	text, err := os.ReadFile("testdata/sidecar.yaml")
	must(r.T, err)
	r.spec = as[corev1.Pod](r.T, parseObjects(r.T, string(text)).one(r.T, "Pod")).Spec
	r.mountVolumes(corev1.ConfigMap{})
	// Tests that run at the same time need their own ports.
	sidecar, env := &r.spec.InitContainers[0], r.spec.Containers[0].Env
	sidecar.Args = append(sidecar.Args, "--listen", r.listen, "--admin-listen", r.adminListen())
	_, env[1].Value, err = net.SplitHostPort(r.listen)
	must(r.T, err)
}

// adminListen is the admin address in the form of the examples, which the kubelet can reach.
func (r *podRun) adminListen() string {
	return ":" + strings.TrimPrefix(r.adminURL, "http://127.0.0.1:")
}

// freeAddress returns an address on loopback that is free now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, l.Close())
	return l.Addr().String()
}

func (r *podRun) mountVolumes(config corev1.ConfigMap) {
	r.Helper()
	for _, v := range r.spec.Volumes {
		r.volumes[v.Name] = r.TempDir()
	}
	for _, v := range r.spec.Volumes {
		if v.ConfigMap == nil {
			continue
		}
		for _, item := range v.ConfigMap.Items {
			content := r.inDirectories(r.spec.InitContainers[0], config.Data[item.Key])
			must(r.T, os.WriteFile(filepath.Join(r.volumes[v.Name], item.Path), []byte(content), 0o600))
		}
	}
}

// inDirectories replaces the paths of a container's volumes, except in /run, where they are mounted.
func (r *podRun) inDirectories(c corev1.Container, text string) string {
	for _, m := range c.VolumeMounts {
		if dir := r.volumes[m.Name]; !strings.Contains(m.MountPath, "/run/") {
			text = strings.ReplaceAll(text, m.MountPath, dir)
		}
	}
	return text
}

// container returns a container of the pod that runs a program. As in a cluster, the service account
// is mounted unless the container mounts a volume there itself.
func (r *podRun) container(c corev1.Container, program string) *cluster.Container {
	r.Helper()
	host, port, err := net.SplitHostPort(strings.TrimPrefix(r.api.URL, "https://"))
	must(r.T, err)
	env := map[string]string{"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "PATH": os.Getenv("PATH"), "GORACE": os.Getenv("GORACE")}
	for _, e := range c.Env {
		env[e.Name] = e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef.FieldPath == "metadata.namespace" {
			env[e.Name] = r.ns
		}
	}
	run := &cluster.Container{
		Command: []string{program}, Mounts: map[string]string{cluster.AccountPath: r.account}, Ready: "ready", Log: filepath.Join(r.TempDir(), "log"),
	}
	for _, m := range c.VolumeMounts {
		if strings.Contains(m.MountPath, "/run/") {
			run.Mounts[m.MountPath] = r.volumes[m.Name]
		}
	}
	for _, arg := range c.Args {
		run.Command = append(run.Command, r.inDirectories(c, arg))
	}
	for name, value := range env {
		run.Env = append(run.Env, name+"="+value)
	}
	return run
}

// ask sends a request to the admin address.
func (r *podRun) ask(path string) (body string, status int) {
	r.Helper()
	got, err := cluster.NewEndpoint("admin", r.adminURL, "", nil).Ask(r.Context(), cluster.Get(path))
	must(r.T, err)
	return string(got.Body), got.Status
}

// cached returns the number of answers from the cache.
func (r *podRun) cached() float64 {
	r.Helper()
	text, _ := r.ask("/metrics")
	return cluster.Metrics("\n"+text).Sum("watchproxy_requests_total", cluster.Label("source", "cache"))
}

func (r *podRun) createPod(name string) {
	r.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	_, err := r.api.Client().CoreV1().Pods(r.ns).Create(r.Context(), pod, metav1.CreateOptions{})
	must(r.T, err)
}

// shows waits until a container has printed a line.
func (r *podRun) shows(c *cluster.Container, line string) {
	r.Helper()
	cluster.Eventually(r.T, line, func() bool { return strings.Contains(c.Output(), line+"\n") })
}
