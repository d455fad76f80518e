package main

import (
	"os/exec"
	"strings"
	"testing"
)

func TestCompletion(t *testing.T) {
	path := kubeconfigFor(t, "https://a.example")
	const files, noFiles, byExtension = ":0", ":4", ":8"
	for line, want := range map[string][]string{
		"serve --config ":     {"yaml", "yml", "json", byExtension},
		"serve --kubeconfig ": {files},
		"kubeconfig --kubeconfig " + path + " --context ": {"a", "b", noFiles},
		"config validate ": {files},
	} {
		out, err := execute(append([]string{"__complete"}, strings.Split(line, " ")...)...)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Fields(out); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
}

// The installed shells accept the completion scripts.
func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		got := finish(t, "", nil, "completion", shell)
		if got.code != 0 || got.stderr != "" || !strings.Contains(got.stdout, "watchproxy") {
			t.Errorf("%s: %+v", shell, got)
		}
		if shell != "bash" {
			continue
		}
		check := exec.CommandContext(t.Context(), "bash", "-n")
		check.Stdin = strings.NewReader(got.stdout)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}
