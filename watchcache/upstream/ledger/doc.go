// Package ledger proves that a resource has not changed while other resources were written. It
// knows which resource has used each of etcd's revisions, as far as watches have shown it.
package ledger
