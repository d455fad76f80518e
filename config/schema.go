package config

import _ "embed"

//go:embed schema.json
var schema []byte

// Schema returns the JSON schema (draft 2020-12) of a configuration file. It does not tell what Validate
// does of values that go together.
func Schema() []byte { return schema }
