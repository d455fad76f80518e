// Package ledger proves that nothing has happened to a resource while others were written to. It
// knows which resource has used each of etcd's revisions, as far as watches have shown it.
package ledger
