package kubectl

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/watchproxy/watchproxy/bench/clients"
	"github.com/watchproxy/watchproxy/bench/cluster"
)

// carriers maps each of kubectl's streaming protocols to the environment variables that select it.
var carriers = map[string][]string{
	"websocket": {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=true"},
	"spdy":      {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false"},
}

// unread matches a message that kubectl sometimes prints, with the apiserver as well, if a command
// ends before it has read all of its input.
var unread = regexp.MustCompile(`(?m)^E.*"Copying stdin failed".*\n`)

func TestKubectlExec(t *testing.T) {
	w := sharedWorld(t)
	k := startKubelet(t, w, "kubectl-exec")
	fronts := w.Fronts(t)
	run := func(args ...string) clients.Invocation {
		return clients.Kubectl(append([]string{"-n", k.namespace, "exec", "-i", k.pod, "--"}, args...)...)
	}
	const large = 2 << 20
	noise := random(large)
	long := strings.Repeat("ü ", 20<<10/3) + "end" // about 40 KB once escaped in the request line
	for carrier, env := range carriers {
		t.Run(carrier, func(t *testing.T) {
			for name, test := range map[string]struct {
				clients.Invocation
				want clients.Outcome
			}{
				"out":       {run("echo", "hello"), says("hello\n", "", 0)},
				"in":        {run("sort").Reading("b\na\n"), says("a\nb\n", "", 0)},
				"err":       {run("sh", "-c", "echo out; echo err >&2; exit 7"), says("out\n", "err\ncommand terminated with exit code 7\n", 7)},
				"ends soon": {run("true").Reading(strings.Repeat("ignored\n", 100_000)), says("", "", 0)},
				"large":     {run("cat").Reading(noise), says(noise, "", 0)},
				"long":      {run("echo", long), says(long+"\n", "", 0)},
			} {
				t.Run(name, func(t *testing.T) {
					for _, f := range fronts {
						got := f.Run(t, test.With(env...))
						if name == "ends soon" {
							got.Stderr = unread.ReplaceAllString(got.Stderr, "")
						}
						if got != test.want {
							t.Errorf("%s: exit code %d instead of %d, %d bytes of output instead of %d, error output %.500q",
								f.Name, got.Code, test.want.Code, len(got.Stdout), len(test.want.Stdout), got.Stderr)
						}
					}
				})
			}
			for name, i := range map[string]clients.Invocation{
				"no such command":   run("no-such-command"),
				"no such pod":       clients.Kubectl("-n", k.namespace, "exec", "missing", "--", "true"),
				"no such container": clients.Kubectl("-n", k.namespace, "exec", k.pod, "-c", "missing", "--", "true"),
			} {
				t.Run(name, func(t *testing.T) {
					if o := same(t, fronts, i.With(env...)); o.Code == 0 {
						t.Error("it succeeds")
					}
				})
			}
		})
	}
	cluster.Eventually(t, "all streams are closed", func() bool { return k.open.Load() == 0 })
	cluster.Eventually(t, "the proxy has let go of them", func() bool {
		return w.Proxy.MetricsT(t).Sum("watchproxy_forwards_in_flight") == 0
	})
}

// random returns bytes that are not valid text in any of the protocols involved.
func random(size int) string {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], cluster.Seed())
	b := make([]byte, size)
	rand.NewChaCha8(seed).Read(b)
	return string(b)
}

// A dialogue works line by line. If kubectl is killed, the command ends, too.
func TestKubectlExecDialogue(t *testing.T) {
	w := sharedWorld(t)
	k := startKubelet(t, w, "kubectl-dialogue")
	for _, f := range w.Fronts(t) {
		for carrier, env := range carriers {
			for name, args := range map[string][]string{
				"exec":   {"exec", "-i", k.pod, "--", "sh", "-c", "echo hello; exec cat"},
				"attach": {"attach", "-i", k.pod},
			} {
				t.Run(f.Name+"/"+carrier+"/"+name, func(t *testing.T) {
					begin := func() *clients.Running {
						r := f.Start(t, clients.Kubectl(append([]string{"-n", k.namespace}, args...)...).With(env...))
						if got := r.Line(t); got != "hello" {
							t.Fatalf("got %q", got)
						}
						for _, word := range []string{"one", "two", "three"} {
							io.WriteString(r.Stdin, word+"\n")
							if got := r.Line(t); got != word {
								t.Fatalf("got %q instead of %q", got, word)
							}
						}
						return r
					}
					r := begin()
					r.Stdin.Close()
					if code := r.Wait(); code != 0 {
						t.Errorf("exit code %d\n%s", code, r.Stderr)
					}
					cluster.Eventually(t, "the streams are closed", func() bool { return k.open.Load() == 0 })

					r = begin()
					if k.open.Load() != 1 {
						t.Errorf("%d commands are running", k.open.Load())
					}
					r.Kill()
					cluster.Eventually(t, "the command ends with kubectl", func() bool { return k.open.Load() == 0 })
				})
			}
		}
	}
}

func says(stdout, stderr string, code int) clients.Outcome {
	return clients.Outcome{Stdout: stdout, Stderr: stderr, Code: code}
}
