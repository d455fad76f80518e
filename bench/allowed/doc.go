// Package allowed checks views with namespaces: allowed. Such a view answers a list or a watch of
// all namespaces with those that the sender may read. Its tests run the real proxy in front of a
// real kube-apiserver.
//
//   - TestUnion compares lists in the view with the union of the lists of each namespace, which the
//     same user gets from the apiserver itself. Its users have random rights in many namespaces.
//   - TestInformers changes rights and objects at random. Informers in the view must have what their
//     users may read in the end.
//   - TestTokens and TestNoWatchResumes check what becomes of continue tokens and resourceVersions
//     that were given with other rights.
//   - TestLeaks checks requests that the view must not narrow, and TestOutage an upstream that is
//     down.
//
// Package grants tests with fakes when a watch ends, and package watch what it shows meanwhile.
//
// Each object has the number of its namespace in its name and its data, in the form zq012q. All
// bytes of an answer are searched for such marks, also those in continue tokens.
package allowed
