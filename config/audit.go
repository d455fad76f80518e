package config

// Audit configures the audit log. Its fields have the names of the apiserver's flags --audit-log-*.
type Audit struct {
	// PolicyFile is the path of an audit policy in the apiserver's format (audit.k8s.io/v1, kind
	// Policy). Use the apiserver's own policy, so that both logs contain the same requests. Gets
	// and lists with the level RequestResponse are forwarded, because only the apiserver can log
	// the objects. The file is read at the start.
	PolicyFile string `json:"policyFile" format:"text"`
	// LogPath is the path of the log, with one JSON object per line. The proxy creates the file
	// with access for its own user only. "-" is standard output. The first line of standard output
	// is not part of the log.
	LogPath string `json:"logPath" format:"text"`
	// LogMode is blocking or blocking-strict. A response waits until its events are written. With
	// blocking-strict, a request also fails with 500 if its events cannot be written.
	LogMode AuditMode `json:"logMode,omitempty" default:"blocking" oneof:"blocking blocking-strict"`
	// LogMaxSize is the size in MiB at which the file is rotated. 0 means never.
	LogMaxSize *int `json:"logMaxSize,omitempty" default:"100" min:"0"`
	// LogMaxBackups is the number of rotated files to keep. 0 means no limit.
	LogMaxBackups *int `json:"logMaxBackups,omitempty" default:"100" min:"0"`
	// LogMaxAge is how many days rotated files are kept. 0 means no limit.
	LogMaxAge *int `json:"logMaxAge,omitempty" default:"366" min:"0"`
}

// AuditMode determines what happens to a request whose events cannot be written.
type AuditMode string

// The values of [AuditMode].
const (
	Blocking       AuditMode = "blocking"
	BlockingStrict AuditMode = "blocking-strict"
)
