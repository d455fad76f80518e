package clients

import (
	"bufio"
	"context"
	"crypto/rand"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// carriers are the protocols by which kubectl asks for streams, by the setting that chooses them.
var carriers = map[string][]string{
	"websocket": {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=true", "KUBECTL_PORT_FORWARD_WEBSOCKETS=true"},
	"spdy":      {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false", "KUBECTL_PORT_FORWARD_WEBSOCKETS=false"},
}

// unread is what kubectl says now and then, also at the apiserver, if a command ends before it has read its input.
var unread = regexp.MustCompile(`(?m)^E.*"Copying stdin failed".*\n`)

func TestKubectlExec(t *testing.T) {
	w := sharedWorld(t)
	k := startKubelet(t, w, "kubectl-exec")
	fronts := w.fronts(t)
	run := func(args ...string) invocation {
		return kubectl(append([]string{"-n", k.namespace, "exec", "-i", k.pod, "--"}, args...)...)
	}
	const large = 8 << 20
	noise := random(large)
	long := strings.Repeat("ü ", 20<<10/3) + "end" // about 40 KB once escaped in the request line
	for carrier, env := range carriers {
		t.Run(carrier, func(t *testing.T) {
			for name, test := range map[string]struct {
				invocation
				want outcome
			}{
				"out":       {run("echo", "hello"), outcome{"hello\n", "", 0}},
				"in":        {run("sort").reading("b\na\n"), outcome{"a\nb\n", "", 0}},
				"err":       {run("sh", "-c", "echo out; echo err >&2; exit 7"), outcome{"out\n", "err\ncommand terminated with exit code 7\n", 7}},
				"ends soon": {run("true").reading(strings.Repeat("ignored\n", 100_000)), outcome{"", "", 0}},
				"large":     {run("cat").reading(noise), outcome{noise, "", 0}},
				"long":      {run("echo", long), outcome{long + "\n", "", 0}},
			} {
				t.Run(name, func(t *testing.T) {
					for _, f := range fronts {
						got := f.run(t, test.with(env...))
						if name == "ends soon" {
							got.stderr = unread.ReplaceAllString(got.stderr, "")
						}
						if got != test.want {
							t.Errorf("%s: exit code %d instead of %d, %d bytes of output instead of %d, error output %.500q",
								f.name, got.code, test.want.code, len(got.stdout), len(test.want.stdout), got.stderr)
						}
					}
				})
			}
			for name, i := range map[string]invocation{
				"no such command":   run("no-such-command"),
				"no such pod":       kubectl("-n", k.namespace, "exec", "missing", "--", "true"),
				"no such container": kubectl("-n", k.namespace, "exec", k.pod, "-c", "missing", "--", "true"),
			} {
				t.Run(name, func(t *testing.T) {
					if o := same(t, fronts, i.with(env...)); o.code == 0 {
						t.Error("it succeeds")
					}
				})
			}
		})
	}
	eventually(t, "all streams are closed", func() bool { return k.open.Load() == 0 })
	eventually(t, "the proxy has let go of them", func() bool {
		return proxyMetrics(t, w.proxy).sum("watchproxy_forwards_in_flight") == 0
	})
}

// random returns bytes that no protocol on the way can take for text.
func random(size int) string {
	b := make([]byte, size)
	rand.Read(b)
	return string(b)
}

// A dialogue works in lockstep, and when kubectl is killed the command ends, too.
func TestKubectlExecDialogue(t *testing.T) {
	w := sharedWorld(t)
	k := startKubelet(t, w, "kubectl-dialogue")
	for _, f := range w.fronts(t) {
		for carrier, env := range carriers {
			for name, args := range map[string][]string{
				"exec":   {"exec", "-i", k.pod, "--", "sh", "-c", "echo hello; exec cat"},
				"attach": {"attach", "-i", k.pod},
			} {
				t.Run(f.name+"/"+carrier+"/"+name, func(t *testing.T) {
					begin := func() *running {
						r := f.start(t, kubectl(append([]string{"-n", k.namespace}, args...)...).with(env...))
						if got := r.line(t); got != "hello" {
							t.Fatalf("got %q", got)
						}
						for _, word := range []string{"one", "two", "three"} {
							io.WriteString(r.stdin, word+"\n")
							if got := r.line(t); got != word {
								t.Fatalf("got %q instead of %q", got, word)
							}
						}
						return r
					}
					r := begin()
					r.stdin.Close()
					if code := r.wait(); code != 0 {
						t.Errorf("exit code %d\n%s", code, r.stderr)
					}
					eventually(t, "the streams are closed", func() bool { return k.open.Load() == 0 })

					r = begin()
					if k.open.Load() != 1 {
						t.Errorf("%d commands are running", k.open.Load())
					}
					r.kill()
					eventually(t, "the command ends with kubectl", func() bool { return k.open.Load() == 0 })
				})
			}
		}
	}
}

// kubectl cp, which is tar over exec, copies both ways.
func TestKubectlCopy(t *testing.T) {
	w := sharedWorld(t)
	k := startKubelet(t, w, "kubectl-cp")
	for _, f := range w.fronts(t) {
		dir := t.TempDir()
		content := random(1 << 20)
		path := func(name string) string { return filepath.Join(dir, name) }
		if err := os.WriteFile(path("from"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		pod := k.namespace + "/" + k.pod + ":"
		f.must(t, kubectl("cp", path("from"), pod+path("there")))
		f.must(t, kubectl("cp", pod+path("there"), path("back")))
		for _, name := range []string{"there", "back"} {
			if got, err := os.ReadFile(path(name)); err != nil || string(got) != content {
				t.Errorf("%s: %s: %d bytes, %v", f.name, name, len(got), err)
			}
		}
	}
}

// sizes are those that a terminal takes, one after the other.
type sizes chan *remotecommand.TerminalSize

// Next implements remotecommand.TerminalSizeQueue.
func (s sizes) Next() *remotecommand.TerminalSize { return <-s }

// client-go's own executors work with a terminal that changes its size.
func TestClientGoExec(t *testing.T) {
	w := sharedWorld(t)
	k := startKubelet(t, w, "client-go-exec")
	target, err := url.Parse(w.proxy.URL + "/api/v1/namespaces/" + k.namespace + "/pods/" + k.pod +
		"/exec?command=sed&command=/done/q&stdin=1&stdout=1&tty=1")
	if err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func(*rest.Config) (remotecommand.Executor, error){
		"websocket": func(c *rest.Config) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(c, "GET", target.String())
		},
		"spdy": func(c *rest.Config) (remotecommand.Executor, error) {
			return remotecommand.NewSPDYExecutor(c, "POST", target)
		},
	} {
		t.Run(name, func(t *testing.T) {
			executor, err := open(w.proxy.RESTConfig())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			terminal := make(sizes, 2)
			terminal <- &remotecommand.TerminalSize{Width: 80, Height: 25}
			terminal <- &remotecommand.TerminalSize{Width: 100, Height: 50}
			close(terminal)
			stdin, typed := io.Pipe()
			shown, stdout := io.Pipe()
			go func() {
				err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout, Tty: true, TerminalSizeQueue: terminal})
				stdin.Close()
				stdout.CloseWithError(err)
			}()
			lines := bufio.NewScanner(shown)
			for _, want := range []string{"80x25", "100x50", "done"} {
				if want == "done" {
					io.WriteString(typed, "done\n")
				}
				if !lines.Scan() || lines.Text() != want {
					t.Fatalf("got %q, %v instead of %q", lines.Text(), lines.Err(), want)
				}
			}
			if lines.Scan() || lines.Err() != nil {
				t.Errorf("then came %q, %v", lines.Text(), lines.Err())
			}
		})
	}
}
