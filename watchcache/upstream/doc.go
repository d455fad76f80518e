// Package upstream feeds watch caches from a kube-apiserver: one list+watch
// loop per resource, however many clients read.
//
// A [Feed] belongs to one resource and alone writes to its cache. It runs one
// straight loop:
//
//	discover ─► probe ─► sync ─► watch ──(stream ends)──► watch from the last RV
//	                      ▲        │
//	                      └────────┴──(410, diverged)──► relist as a difference
//
// [Feeds] starts feeds on first use, hands out their caches, remembers for a
// while what cannot be cached, and stops what nobody uses.
//
// A resource that clients ask for in protobuf, too, has a second feed, which the
// first of them starts. Custom resources have no protobuf form: upstream refuses it
// with 406, which is [ErrNoEncoding] and remembered for a while.
//
// # What upstream sees
//
// Discovery is shared: the list of groups, and a document for each group and version. Each is
// read by one request at a time and believed for two seconds. Only what they show gets a feed.
//
// Per feed: one probe, one watch; and a probe before a watch that goes on where one was lost.
// The probe is a
// list that matches nothing; its revision is a linearizable read, and the form
// of its body tells built-in types (kind first, list items without kind) from
// custom resources (sorted keys, items with kind), which an empty list shows as
// well as a full one.
//
// State is read through the watch itself (sendInitialEvents), so a sync is no
// list at all. Where upstream refuses that (422), it is listed by pages.
//
// A consistent read costs a probe, and what it takes to catch up with what the
// probe saw, shared by all readers of the moment (see [Feed.Fresh]). Probes of a resource follow
// each other without a pause, one at a time, unless a crowd reads; a budget bounds those of all resources. Custom
// resources cost one read of their definition and, all of them together, one watch
// of the definitions' metadata.
//
// To catch up may take longer than upstream takes for the answer itself, and cost it more: a list of 10,000
// objects' metadata, for one of 170 of them. So a feed keeps a moving figure of both, for each size of
// read, and leaves those to upstream that it answers sooner (see [roads]). Then a run for no reader
// looks each second whether anybody has written since, and lists metadata much more seldom. Where others write each
// five seconds, as the apiserver itself does, one read in seven is left to upstream; before there were such runs it was
// three in four. To decide by what a run costs, and begin with the cheap part of it, was no good: beside 200 foreign writes a second the probe alone takes as long as the list.
//
// # The ledger of revisions
//
// Every cluster has foreign writes: leases, events, statuses. A probe then tells a revision that a
// quiet collection's own stream says nothing of for a minute. But all feeds together see which
// resource has used each revision, if the rest is watched as well. So while consistent readers
// have a use for it, a [keeper] watches the metadata of all other resources and notes their revisions
// in a [ledger], and what that covers is proved without a list. Revisions of no API resource (the
// apiservers' own leases, one in ten seconds) are holes: caches are brought beyond them in the
// background, by a run as for a reader.
//
// The ledger counts events of watches, beyond all that the watch has told before: no state that a
// watch begins with, and no event that a relist made up. It counts those of resources in one etcd. To
// show that, a probe of the resource has to lie between two probes of namespaces, three times, each
// time at another revision. A probe that does not, or two revisions that another resource has used as
// well, puts it apart for good. Events by their two names count as one resource, aggregated APIs not
// at all: they may show the objects of others. When a stream breaks
// the ledger forgets all, the evidence too, as etcd may have been restored or exchanged. After that a
// cache has to be shown to be up to date by upstream itself before anything is proved for it. Nothing is
// for events: etcd deletes many of them at one revision when a lease expires, and a cache may show a
// part of that.
//
// A proxy in front of another has the other cache all that its ledger watches.
//
// # Where a feed begins
//
// Usually at the present. But when a proxy is replaced, the clients of the one before it
// come to the next with watches that go on from before its history, all within seconds.
// So a feed that such a watch starts begins in the past: somewhat more than twice as far
// back as the earliest resourceVersion that is asked for until it has found out about
// its resource, or if upstream does not tell that any more, just there; with one list as
// of then (Exact), and the watch from there. Upstream may list what was then and not
// tell what has happened since: its watch cache is younger than etcd's history. So
// nobody is answered before that watch was accepted and the cache has got to where
// upstream was; until then it begins elsewhere. As no streamed state shows how bookmarks
// look, a watch of nothing does. A read that starts a feed has no use for the past, and
// whoever comes from there later is forwarded or told so. A proxy that ends does its
// part: its watches end with a bookmark, so that their clients go on from much the same
// resourceVersion. Of two hundred informers whose proxies were replaced one after the
// other, 23 were sent back to the state before that was so, and 18 watches stayed with
// upstream.
//
// # When upstream is away
//
// All feeds share one knowledge of whether upstream is there (health.go, checks.go). A feed that
// gets no answer, a broken stream or a 5xx doubts it, and no feed opens anything until a check of
// /readyz has succeeded. Meanwhile upstream is asked at most four times a second. Then feeds go on
// eight at a time, those with open watches first. A resource that fails while upstream is ready
// backs off by itself. With a back-off of its own for each feed, 50 feeds asked 90 times a second
// and needed ten seconds after the return (make restarts).
//
// # Several servers
//
// [servers.Set] is below all that: a way to whichever apiserver of the cluster is asked at the time. kube-apiserver's
// resourceVersions are etcd's, so a feed whose stream breaks resumes at another server as it would at the same one. What
// must not be believed is a server that is of another etcd, or whose etcd has other things to tell than it had; a
// consistent read below what any server has said shows that. A watch cache that lags behind is no danger: the
// apiserver waits until it has got to the resourceVersion of a list, and a watch is only sent what comes after its own.
//
// # Saved caches
//
// A [Store] keeps caches and their logs on disk, so that a restart costs upstream a probe,
// a watch and a list of metadata for each feed, and clients nothing. What is restored answers nobody before it
// has got to where the probe found upstream (by the stream, which brings what has
// happened since, or by a side watch, if nothing has) and all its objects' metadata are what
// upstream has there: an etcd that was restored and has gone on since lets a watch go on
// from a resourceVersion of the history that is no more. It is refused if it comes from another
// cluster or another version of the apiserver, of which the same object may have other
// bytes, if the resource's definition has changed, or if upstream is behind it.
//
// # Learnt from the real apiserver
//
// A watch with timeoutSeconds=3 gets a bookmark after about a second, at the
// revision of a probe that was sent before it; but only if the probe was of the
// same resource. It is the probe, a consistent read, that makes the apiserver ask
// etcd how far the resource's own watch has got; a quiet collection is told
// nothing for a minute otherwise. What the probe saw, the apiserver's cache has:
// a list not older than that does not wait.
//
// It comes when a timer of a second finds it due, so up to two seconds and a
// quarter later. A list of the metadata of six thousand objects in protobuf took
// some 25 ms, a megabyte, and shows as exactly that nothing has happened; so that is
// tried first.
//
// A consistent list from the apiserver's own cache waits until that has got to etcd's revision.
// Where only others write, it learns that by asking etcd every 100 ms: a list, and a probe just
// as well, takes that long. Events have no cache there, so a probe of them returns at once. With that
// and the ledger, a list of a quiet collection beside 200 foreign writes a second takes 3 ms in the
// median, and 100 ms at the apiserver (make bench-recent).
//
// Events have no watch cache there: no bookmarks come, and a quiet stream looks
// like a broken one. The watchdog compares their metadata before it reconnects.
//
// When a CustomResourceDefinition changes, upstream ends the watches of its
// resources cleanly, at any moment after the change, serves 429 for some 100 ms
// and then the same objects at the same resourceVersions in other bytes. So the
// feed is abandoned as soon as the change is seen, requests wait for upstream to
// settle, and a watch of a custom resource that ends before its time leads to a
// relist that compares bytes.
//
// An etcd that was restored to an earlier state brings the same resourceVersions again, with
// another meaning. kube-apiserver accepts a watch from one that is to come, and is silent
// until it gets there: who goes on with such a watch misses what has happened on the way.
// So a feed asks where upstream stands first. Should upstream have overtaken the
// cache by then, the changes that do not fit, and the self-check, have to show it.
//
// After its own restart, kube-apiserver 1.36 answers a watch from any earlier
// resourceVersion with "too old", because its history begins anew: a restart
// upstream always leads to a relist here. What happened in between is turned
// into events (watchcache.Cache.Replace) and downstream watches go on.
package upstream
