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
		"serve --log-level ":      {"debug", "info", "warn", "error", noFiles},
		"serve --authentication ": {"delegated", "none", noFiles},
		"serve --config ":         {"yaml", "yml", "json", byExtension},
		"serve --kubeconfig ":     {files},
		"serve --tls-cert-file ":  {files},
		"serve --listen ":         {noFiles},
		"serve ":                  {noFiles},
		"kubeconfig --kubeconfig " + path + " --context ": {"a", "b", noFiles},
		"kubeconfig --certificate-authority ":             {files},
		"status -o ":                                      {"json", noFiles},
		"config validate ":                                {"yaml", "yml", "json", byExtension},
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
		script, err := execute("completion", shell)
		if err != nil || !strings.Contains(script, "watchproxy") {
			t.Errorf("%s: %v, %d bytes", shell, err, len(script))
		}
		if shell != "bash" {
			continue
		}
		check := exec.CommandContext(t.Context(), "bash", "-n")
		check.Stdin = strings.NewReader(script)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}
