package config

import _ "embed"

//go:embed schema.json
var schema []byte

// Schema returns the JSON schema (draft 2020-12) of a configuration file. It does not cover
// constraints between several fields; Validate does.
func Schema() []byte { return schema }
