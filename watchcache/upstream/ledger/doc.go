// Package ledger proves that a resource has not changed while others were written. It
// knows which resource has used each of etcd's revisions, as far as watches have shown it.
package ledger
