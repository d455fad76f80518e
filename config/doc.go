// Package config defines watchproxy's configuration: types, defaults, strict loading, validation.
//
// The tags of a field have its default and the rules for its value. The schema and the reference
// are generated from the types, their comments and the defaults.
//
// Loading is strict: an unknown or repeated field, a value of the wrong type or a second document
// is an error. These errors are reported together, each with the path of its field. If there are
// none, validation reports all errors of the values.
package config
