// Package config is watchproxy's configuration: its types, defaults, strict
// loading and validation.
//
// A file is read strictly: an unknown field, a field given twice or a value of
// the wrong type is an error. Validation reports everything that is wrong at
// once, each with the path of its field.
package config
