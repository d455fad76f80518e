package config

import "testing"

func TestAudit(t *testing.T) {
	for text, want := range map[string]string{
		"policyFile: p, logPath: l":                 "",
		"policyFile: p, logPath: '-'":               "",
		"policyFile: p, logPath: l, logMode: batch": "audit.logMode: Invalid value: \"batch\": is gone: a response waits",
		"policyFile: p":                             "audit.logPath: Invalid value: \"\": must not be empty",
		"logPath: l":                                "audit.policyFile: Invalid value: \"\": must not be empty",
	} {
		_, err := load(t, head+"audit: {"+text+"}\n")
		refusedFor(t, text, err, want)
	}
	c, err := load(t, head+"audit: {policyFile: p, logPath: '-', logMaxSize: 0}\n")
	if err != nil {
		t.Fatal(err)
	}
	if a := c.Audit; a.LogMode != Blocking || *a.LogMaxSize != 0 || *a.LogMaxBackups != 100 || *a.LogMaxAge != 366 {
		t.Errorf("mode %s, size %d, backups %d, age %d", a.LogMode, *a.LogMaxSize, *a.LogMaxBackups, *a.LogMaxAge)
	}
	if Default().Audit != nil {
		t.Error("an audit log is the default")
	}
}
