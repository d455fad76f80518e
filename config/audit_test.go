package config

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

const goodPolicy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n"

// If a policy cannot be read, that is an error of its field.
func TestAudit(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, log := write("policy.yaml", goodPolicy), filepath.Join(dir, "new", "audit.log")
	for text, want := range map[string]string{
		"policyFile: " + good + ", logPath: " + log:                               "",
		"policyFile: " + good + ", logPath: '-'":                                  "",
		"policyFile: " + good + ", logPath: " + log + ", logMode: batch":          "",
		"policyFile: " + good:                                                     "audit.logPath: Required",
		"logPath: " + log:                                                         "audit.policyFile: Required",
		"policyFile: " + dir + "/none, logPath: " + log:                           "audit.policyFile: Invalid",
		"policyFile: " + write("empty.yaml", "") + ", logPath: " + log:            "audit.policyFile: Invalid",
		"policyFile: " + write("no", "kind: Policy\n") + ", logPath: " + log:      "audit.policyFile: Invalid",
		"policyFile: " + good + ", logPath: " + log + ", logMode: sometimes":      "audit.logMode: Unsupported",
		"policyFile: " + good + ", logPath: " + log + ", logMaxSize: -1":          "audit.logMaxSize: Invalid",
		"policyFile: " + good + ", logPath: " + log + ", logMaxSize: -1, size: 1": "audit.size: Forbidden",
	} {
		c, err := load(t, head+"audit: {"+text+"}\n")
		if err == nil {
			err = c.Audit.CheckPolicy(field.NewPath("audit")).ToAggregate()
		}
		refusedFor(t, text, err, want)
	}
}

// The defaults of the log are kube-apiserver's.
func TestAuditDefaults(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(goodPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := load(t, head+"audit: {policyFile: "+policy+", logPath: '-', logMaxSize: 0}\n")
	if err != nil {
		t.Fatal(err)
	}
	if a := c.Audit; a.LogMode != Blocking || *a.LogMaxSize != 0 {
		t.Errorf("mode %s, size %d", a.LogMode, *a.LogMaxSize)
	}
	if Default().Audit != nil {
		t.Error("an audit log is the default")
	}
}
