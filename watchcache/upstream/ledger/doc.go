// Package ledger proves that a resource has not changed while other resources were written. It
// records which resource used each revision of etcd. Watches show these revisions.
package ledger
