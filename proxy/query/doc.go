// Package query parses the query parameters of a read, and parses and writes continue tokens. In
// every case of doubt, upstream must interpret them. It also says what of a read is authorized.
package query
