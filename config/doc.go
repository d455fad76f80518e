// Package config is watchproxy's configuration: its types, defaults, strict
// loading and validation.
//
// A file is read strictly: an unknown field, a field given twice, a value of the
// wrong type or a second document is an error. All that is wrong is told at once,
// each with the path of its field.
package config
