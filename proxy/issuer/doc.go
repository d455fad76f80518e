// Package issuer makes the proxy's serving certificate, for clusters without another issuer.
//
// All replicas share one CA. A Secret has its certificate and private key, and a ConfigMap has the
// certificate, for clients. Both must exist, so the proxy only needs the rights to get and update
// these two, by name. (The right to create Secrets cannot be limited to a name. With it, the proxy
// could read the token of any service account in the namespace.) The first replica that finds the
// Secret empty writes a new CA. If two write, the resourceVersion makes the second update fail, and
// the second replica uses the first one's CA.
//
// Each replica keeps its serving certificate and the key in memory. So no private key is in a
// manifest or on a disk, and replicas need no agreement on renewals.
//
// [Pod] is for a proxy that runs as a sidecar. Its CA is for the clients in its pod only, so a file
// in a volume of its own container has the CA and its key. It also publishes the files that the
// in-cluster configuration of these clients reads.
//
// # Invariants
//
//  1. A served certificate verifies against the CA that was last read from the Secret or the file.
//  2. The CA changes only if somebody empties the Secret, or removes the file before a start. It is
//     valid for ten years. After that, somebody must do so.
//  3. If the Secret or the file contains something other than a CA, a CA signed by another CA, or
//     an expired one, it is not overwritten, because it may belong to somebody.
//  4. While the apiserver cannot be reached, the CA in memory continues to sign.
package issuer
