// Package chain verifies the certificates that clients send, once for each TLS connection.
//
// One verification may check a hundred signatures: a client can make up authorities that have the
// name of its certificate's issuer and sign each other. Five certificates suffice, and take 80 ms
// of processor time. If each request verified them again, a client without rights would take all
// processors at a hundred requests per second.
//
// # Bounds
//
//	what                  | belongs to | filled by  | bound    | beyond it
//	results               | connection | any client | 1        | dropped with the connection
//	certificates          | connection | any client | 10       | the chain is refused
//	long chains at a time | address    | any client | 1 in all | they wait for their turn
//	waiting long chains   | address    | any client | requests | the request is refused, with 429
//
// Long chains have more than one certificate. A single certificate has few possible issuers, all
// of them the operator's own, and never waits.
package chain
