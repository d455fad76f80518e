package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/watchproxy/watchproxy/cmd/watchproxy/status"
)

// outcome is the output of a command and its exit code.
type outcome struct {
	stdout, stderr string
	code           int
}

// finish runs watchproxy in its own process until it ends. The environment contains only the
// variables in env.
func finish(t *testing.T, stdin string, env []string, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), programLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append([]string{asProgram + "=1", endsAtOnce, "HOME=" + t.TempDir()}, env...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%q: %v", args, err)
	}
	return outcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// An error of the command line has the exit code 2. Its single line contains the error and a
// reference to the help.
func TestMisuse(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"serve --lisen 127.0.0.1:0":          `unknown flag: --lisen (see 'watchproxy serve --help')`,
		"serve -x":                           `unknown shorthand flag: 'x' in -x (see 'watchproxy serve --help')`,
		"serve --listen":                     `flag needs an argument: --listen (see 'watchproxy serve --help')`,
		"serve now":                          `unknown command "now" for "watchproxy serve" (see 'watchproxy serve --help')`,
		"sttus":                              `unknown command "sttus" for "watchproxy" Did you mean this? status (see 'watchproxy --help')`,
		"nonsense":                           `unknown command "nonsense" for "watchproxy" (see 'watchproxy --help')`,
		"config valdate x":                   `unknown command "valdate" for "watchproxy config" (see 'watchproxy config --help')`,
		"config validate":                    `accepts 1 arg(s), received 0 (see 'watchproxy config validate --help')`,
		"config validate a b":                `accepts 1 arg(s), received 2 (see 'watchproxy config validate --help')`,
		"status -o yaml":                     `--output "yaml": must be json, or not given (see 'watchproxy status --help')`,
		"status --admin https://":            `--admin "https://": must be the URL of a proxy's admin address, as in http://127.0.0.1:8002 (see 'watchproxy status --help')`,
		"status --admin ftp://a":             `--admin "ftp://a": must be the URL of a proxy's admin address, as in http://127.0.0.1:8002 (see 'watchproxy status --help')`,
		"status --as-client https://a":       `--as-client needs --check (see 'watchproxy status --help')`,
		"status --check --as-client=":        `--as-client "": must be an https URL (see 'watchproxy status --help')`,
		"status --token-file a":              `--token-file needs --as-client (see 'watchproxy status --help')`,
		"status --certificate-authority a":   `--certificate-authority needs --as-client (see 'watchproxy status --help')`,
		"status -o json --tls-server-name a": `--tls-server-name needs --as-client (see 'watchproxy status --help')`,
		"kubeconfig":                         `required flag(s) "server" not set (see 'watchproxy kubeconfig --help')`,
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			got := finish(t, "", nil, strings.Fields(line)...)
			if want := "watchproxy: " + want + "\n"; got.code != 2 || got.stdout != "" || got.stderr != want {
				t.Errorf("exit code %d, output %q\n got %s\nwant %s", got.code, got.stdout, got.stderr, want)
			}
		})
	}
}

// Other errors have the exit code 1. Help has the exit code 0 and describes both codes.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]struct {
		code int
		says string
	}{
		"":                             {0, "Exit codes: 0 if the command succeeds, 2 if the command line is wrong"},
		"--help":                       {0, "Exit codes: "},
		"help serve":                   {0, "--listen ADDRESS"},
		"help config validate":         {0, "validate FILE"},
		"config":                       {0, "Report the errors in a configuration file"},
		"serve --config /no/such/file": {1, "/no/such/file"},
		"serve --log-level loud":       {1, `logLevel: Unsupported value: "loud"`},
		"config validate /no/such":     {1, "/no/such"},
		"kubeconfig --kubeconfig /no/such --server http://a": {1, "kubeconfig: "},
	} {
		got := finish(t, "", nil, strings.Fields(line)...)
		line = "watchproxy " + line
		if got.code != want.code || !strings.Contains(got.stdout+got.stderr, want.says) {
			t.Errorf("%s: %+v", line, got)
		}
		if silent := map[bool]string{true: got.stderr, false: got.stdout}[want.code == 0]; silent != "" {
			t.Errorf("%s: it also says %s", line, silent)
		}
	}
}

// A command that has printed why it failed adds nothing.
func TestReportedErrors(t *testing.T) {
	for err, want := range map[error]string{
		errReported:                         "",
		status.ErrUnhealthy:                 "",
		errors.New("no such\nfile"):         "watchproxy: no such file\n",
		fmt.Errorf("the cause: %w", io.EOF): "watchproxy: the cause: EOF\n",
	} {
		root := &cobra.Command{Use: "watchproxy"}
		root.AddCommand(&cobra.Command{Use: "fail", RunE: func(*cobra.Command, []string) error { return err }})
		prepareRoot(root)
		root.SetArgs([]string{"fail"})
		var stderr bytes.Buffer
		if code := runCommand(t.Context(), root, &stderr); code != exitFailed || stderr.String() != want {
			t.Errorf("%q: exit code %d, %q", err, code, &stderr)
		}
	}
}

func TestVersionFlag(t *testing.T) {
	t.Parallel()
	flag, command := finish(t, "", nil, "--version"), finish(t, "", nil, "version")
	if flag != command || flag.code != 0 || !strings.HasPrefix(flag.stdout, "watchproxy version ") || strings.Count(flag.stdout, "\n") != 1 {
		t.Errorf("--version: %+v, version: %+v", flag, command)
	}
}

// Without a kubeconfig, serve prints the places where it searched, and a remedy.
func TestServeWithoutKubeconfig(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(empty, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const none = "upstream: no service account of a pod, and no usable kubeconfig: no contexts in "
	const remedy = "; name another with --kubeconfig or $KUBECONFIG"
	for name, test := range map[string]struct {
		env, args []string
		says      []string
	}{
		"nothing":          {nil, nil, []string{none, "/.kube/config" + remedy}},
		"only a context":   {nil, []string{"--context", "a"}, []string{"upstream.kubeconfig: no contexts in ", remedy}},
		"no such file":     {[]string{"KUBECONFIG=/no/such"}, nil, []string{none + "/no/such" + remedy}},
		"an empty one":     {[]string{"KUBECONFIG=" + empty}, nil, []string{none + empty + remedy}},
		"named, empty":     {nil, []string{"--kubeconfig", empty}, []string{"upstream.kubeconfig: no contexts in " + empty + "; name another with --kubeconfig"}},
		"the null device":  {nil, []string{"--kubeconfig", "/dev/null"}, []string{"upstream.kubeconfig: no contexts in /dev/null; name another with --kubeconfig"}},
		"named, not there": {nil, []string{"--kubeconfig", "/no/such"}, []string{"upstream.kubeconfig: ", "/no/such"}},
		"unknown context":  {nil, []string{"--kubeconfig", kubeconfigFor(t, "https://a.example"), "--context", "c"}, []string{`upstream.kubeconfig: no context "c"; there are: ["a" "b"]`}},
		"no token": {
			[]string{"KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=1"},
			nil,
			[]string{"upstream: service account of the pod: ", "automountServiceAccountToken", "--kubeconfig"},
		},
	} {
		got := finish(t, "", test.env, append([]string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}, test.args...)...)
		if got.code != 1 || got.stdout != "" || strings.Count(got.stderr, "\n") != 1 || strings.Contains(got.stderr, "KUBERNETES_MASTER") {
			t.Errorf("%s: %+v", name, got)
		}
		for _, what := range test.says {
			if !strings.Contains(got.stderr, what) {
				t.Errorf("%s: no %q in: %s", name, what, got.stderr)
			}
		}
	}
}

// The configuration can come through a pipe, which has its text only once.
func TestConfigFromAPipe(t *testing.T) {
	t.Parallel()
	got := finish(t, "apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\nlogLevel: loud\n", nil, "serve", "--config", "/dev/stdin")
	if got.code != 1 || !strings.Contains(got.stderr, `logLevel: Unsupported value: "loud"`) {
		t.Errorf("%+v", got)
	}
}

// While validate waits for the rest of its input, a signal ends it.
func TestConfigValidateCanBeInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), programLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "config", "validate", "-")
	cmd.Env = []string{asProgram + "=1", endsAtOnce}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	const pipe = 1 << 20 // what it holds at most: one byte more has to be read first
	if _, err := in.Write(bytes.Repeat([]byte("\n"), pipe+1)); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil || err.Error() != "signal: interrupt" {
		t.Errorf("it ends with %v", err)
	}
}

// validate reports all errors of the configuration's form, or else all errors of its values, one per
// line, in the order of the lines. It reads standard input, and accepts an empty file.
func TestConfigValidate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "config.yaml")
	for name, text := range map[string]string{
		"empty":         "",
		"only comments": "# nothing\n---\n",
		"defaults":      finish(t, "", nil, "config", "defaults").stdout,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct{ file, name string }{{path, path}, {"-", "<stdin>"}} {
			if got := finish(t, text, nil, "config", "validate", test.file); got != (outcome{test.name + " is valid\n", "", 0}) {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}

	const wrong = `kind: ProxyConfiguration
listen: 0.0.0.0:6443
tls:
  certFile: /no/such.crt
logLevel: loud
cache:
  exclude:
  - pods
  - Pods
  log: {maxAge: 1ms}
`
	want := []string{
		`1: apiVersion: Required value: must be watchproxy.dev/v1alpha1`,
		`3: tls.privateKeyFile: Required value: a certificate and its private key belong together`,
		`5: logLevel: Unsupported value: "loud": supported values: "debug", "info", "warn", "error"`,
		`9: cache.exclude[1]: Invalid value: "Pods": must be a plural resource name`,
		`10: cache.log.maxAge: Invalid value: "1ms": must be at least 1s`,
	}
	const malformed = wrong + `nonsense: 1
drain: 5
drain: 2s
`
	form := []string{
		`11: nonsense: Forbidden: unknown field (there are accessLogSampling, `,
		`12: drain: Invalid value: "5": must be a duration with its unit, such as 30s or 1m30s`,
		`13: drain: Forbidden: is given twice, in lines 12 and 13`,
	}
	same := func(name string, got outcome, want []string) {
		t.Helper()
		lines := strings.Split(strings.TrimSuffix(got.stderr, "\n"), "\n")
		if got.code != 1 || got.stdout != "" || len(lines) != len(want) {
			t.Fatalf("exit code %d, output %q, errors\n%s", got.code, got.stdout, got.stderr)
		}
		for i, line := range lines {
			if !strings.HasPrefix(line, name+":"+want[i]) {
				t.Errorf(" got %s\nwant %s:%s", line, name, want[i])
			}
		}
	}
	same("<stdin>", finish(t, malformed, nil, "config", "validate", "-"), form)
	same("<stdin>", finish(t, wrong, nil, "config", "validate", "-"), want)

	// The configuration may be for a machine with other environment variables.
	const node, prefix = "apiVersion: watchproxy.dev/v1alpha1\nkind: ProxyConfiguration\ncache:\n  scopes:\n  - ", "5: cache.scopes[0]."
	for scope, want := range map[string]string{
		"fieldSelector: spec.nodeName=$(NODE_NAME)": "",
		"namespaces: [team-$(TEAM)]":                "",
		"fieldSelector: spec.nodeName=$NODE_NAME":   `fieldSelector: Invalid value: "spec.nodeName=$NODE_NAME": must name`,
		"fieldSelector: a!=$(NODE_NAME)":            `fieldSelector: Invalid value: "a!=x": "a" must have the form FIELD=VALUE`,
		"labelSelector: app in $(APP)":              "labelSelector: Invalid value: ",
		"namespaces: [Team-$(TEAM)]":                "namespaces[0]: Invalid value: ",
	} {
		got := finish(t, node+scope, nil, "config", "validate", "-")
		if want != "" {
			same("<stdin>", got, []string{prefix + want})
		} else if got != (outcome{"<stdin> is valid\n", "", 0}) {
			t.Errorf("%s: %+v", scope, got)
		}
	}
}
