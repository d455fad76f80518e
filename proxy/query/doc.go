// Package query reads the query parameters of a read, and reads and writes continue tokens. In every
// case of doubt, upstream has to judge them.
package query
