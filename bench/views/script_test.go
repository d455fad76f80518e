package views

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// watched is the label of all objects of scripts.
const watched = "watched=yes"

// script changes objects of a resource at random.
type script struct {
	w         *world
	r         *resource
	namespace string
	random    *rand.Rand
	prefix    string
	names     []string
	step      int
}

// last is the name of the object that ends the script.
func (s *script) last() string { return s.prefix + "-last" }

// create creates an object with a new name.
func (s *script) create(ctx context.Context) error {
	name := fmt.Sprintf("%s-%d", s.prefix, len(s.names))
	s.names = append(s.names, name)
	return s.createNamed(ctx, name)
}

func (s *script) createNamed(ctx context.Context, name string) error {
	number := len(s.names) % len(s.r.specimens)
	meta := map[string]any{"metadata": map[string]any{
		"labels":      map[string]any{"watched": "yes", "pick": "yes"},
		"annotations": map[string]any{"views.example.com/secret": sentinel + s.prefix},
	}}
	return s.w.createCopy(ctx, s.r, merged(s.r.specimens[number], meta), s.namespace, name, number)
}

// change makes a random change of a random object, which may no longer exist.
func (s *script) change(ctx context.Context) (err error) {
	s.step++
	name := s.names[s.random.IntN(len(s.names))]
	target := s.r.in(s.namespace) + "/" + url.PathEscape(name)
	patch := func(field string, value any) {
		_, err = s.w.write(ctx, http.MethodPatch, target, map[string]any{"metadata": map[string]any{field: value}})
	}
	switch s.random.IntN(9) {
	case 0:
		return s.create(ctx)
	case 1:
		_, err = s.w.write(ctx, http.MethodDelete, target, map[string]any{"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
	case 2, 3:
		patch("labels", map[string]any{"color": []string{"red", "blue"}[s.random.IntN(2)]})
	case 4:
		patch("labels", map[string]any{"pick": []string{"yes", "no"}[s.random.IntN(2)]})
	case 5:
		err = s.annotate(ctx, target)
	case 6:
		if err = s.manage(ctx, target, name); refusal(err) == http.StatusUnprocessableEntity { // some kinds need more fields
			err = s.annotate(ctx, target)
		}
	default:
		err = s.touch(ctx, target)
	}
	if status := refusal(err); status == http.StatusNotFound || status == http.StatusConflict {
		return nil // the object does not exist
	}
	return err
}

// refusal returns the status with which a request was refused.
func refusal(err error) int {
	if refused, ok := errors.AsType[*refusedError](err); ok {
		return refused.status
	}
	return 0
}

// annotate changes only an annotation of an object.
func (s *script) annotate(ctx context.Context, target string) error {
	_, err := s.w.write(ctx, http.MethodPatch, target, map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{"views.example.com/step": fmt.Sprint(sentinel, "step-", s.step)},
	}})
	return err
}

// manage changes only the managed fields of an object.
func (s *script) manage(ctx context.Context, target, name string) error {
	text, err := json.Marshal(map[string]any{
		"kind": s.r.kind, "apiVersion": s.r.apiVersion(),
		"metadata": map[string]any{"name": name, "labels": map[string]any{"watched": "yes"}},
	})
	if err != nil {
		return err
	}
	_, err = ask(ctx, s.w.api, cluster.Request{
		Method: http.MethodPatch, Target: fmt.Sprintf("%s?fieldManager=manager-%d&force=true", target, s.step), Body: string(text),
	}.With("Content-Type", "application/apply-patch+yaml"))
	return err
}

// touch changes the content of an object, in a way that its resource allows. For other resources it
// changes a label.
func (s *script) touch(ctx context.Context, target string) error {
	n := s.random.IntN(4)
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
	var body map[string]any
	status := false
	switch s.r.plural {
	case "pods":
		body, status = map[string]any{"phase": "Running", "podIP": fmt.Sprintf("192.0.2.%d", n), "podIPs": []any{map[string]any{"ip": fmt.Sprintf("192.0.2.%d", n)}}}, true
	case "nodes":
		body, status = map[string]any{"capacity": map[string]any{"cpu": fmt.Sprint(n)}}, true
	case "configmaps":
		body = map[string]any{"data": map[string]any{"app.properties": fmt.Sprint(n)}}
	case "secrets":
		body = map[string]any{"stringData": map[string]any{"tls.crt": fmt.Sprint(n)}}
	case "deployments", "statefulsets", "replicasets", "replicationcontrollers":
		if body = map[string]any{"spec": map[string]any{"replicas": n}}; n > 1 {
			body, status = map[string]any{"observedGeneration": n}, true
		}
	case "cronjobs", "jobs":
		body = map[string]any{"spec": map[string]any{"suspend": n > 1}}
	case "leases":
		body = map[string]any{"spec": map[string]any{"holderIdentity": fmt.Sprint(n), "renewTime": now}}
	case "endpointslices":
		body = map[string]any{"endpoints": []any{map[string]any{"addresses": []any{fmt.Sprintf("192.0.2.%d", n+1)}}}}
	case "endpoints":
		body = map[string]any{"subsets": []any{map[string]any{"addresses": []any{map[string]any{"ip": fmt.Sprintf("192.0.2.%d", n+1)}}, "ports": []any{map[string]any{"port": 80}}}}}
	case "services":
		body = map[string]any{"spec": map[string]any{"selector": map[string]any{"a.b/c": fmt.Sprint(n)}}}
	case "roles", "clusterroles":
		body = map[string]any{"rules": []any{map[string]any{"apiGroups": []any{""}, "resources": []any{fmt.Sprint("r", n)}, "verbs": []any{"get"}}}}
	case "gauges":
		if body = map[string]any{"spec": map[string]any{"nested": map[string]any{"a.b/c": n}, "mixed": []any{n}}}; n > 1 {
			body, status = map[string]any{"conditions": []any{map[string]any{"type": "Ready", "at.x": n}}}, true
		}
	case "planets":
		body = map[string]any{"spec": map[string]any{"names": map[string]any{"en.us": fmt.Sprint(n)}}, "status": map[string]any{"phase": fmt.Sprint(n)}}
	case "widgets":
		body = map[string]any{"spec": map[string]any{"parts": map[string]any{"a.b/c": map[string]any{"weight": n}}, "free": map[string]any{"n": n}}}
	default:
		body = map[string]any{"metadata": map[string]any{"labels": map[string]any{"views.example.com/number": fmt.Sprint(n)}}}
	}
	if status {
		target, body = target+"/status", map[string]any{"status": body}
	}
	_, err := s.w.write(ctx, http.MethodPatch, target, body)
	return err
}
