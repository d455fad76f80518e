package config

import _ "embed"

//go:embed schema.json
var schema []byte

// Schema returns the JSON schema (draft 2020-12) of a configuration file. It does not contain
// constraints between several fields; Validate checks these.
func Schema() []byte { return schema }
