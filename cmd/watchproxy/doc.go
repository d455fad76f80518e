// Command watchproxy is a caching watch proxy for the Kubernetes API.
//
// # Bounds
//
// These tables list what the process holds that somebody else can fill: every cache, map, queue,
// pool and metric. Each row tells what keys it, who can fill it, its bound, and what happens beyond
// it. The workspace is an eighth of the memory budget, at most 128 MiB. A client is unknown until
// its credentials were accepted. bench/hostile fills them through the front door.
//
// Connections and requests:
//
//	what                          keyed by       filled by        bound                                   beyond
//	connections                   connection     anybody          maxConnections + 1,000; descriptors     closed, counted
//	connections of a user         user           users            limits.maxConnectionsPerIdentity        429
//	heads being received          connection     anybody          maxHeaderBytes; 16 MiB in all           closed
//	HTTP/2 frame being received   connection     anybody          16 KiB                                  closed
//	HTTP/2 bodies ahead           connection     anybody          128 KiB a stream, 4 MiB in all          flow control
//	unread answers, unknown       stream         unknown clients  1,000 over all connections              reset
//	fasthttp's buffers            request        anybody          requests under way; 1 s after           pool
//	admin connections             connection     anybody there    32, idle for 1 min                      wait
//	access log line               request        anybody          512 bytes of each text; sampled         cut
//
// Access:
//
//	decisions of access           digest, user   users            16 MiB; TTL + 10 s                      largest holder's oldest
//	good tokens                   digest         token holders    16 MiB; TTL + 10 s                      the same
//	refused tokens                digest         anybody          8 MiB; 20 s                             the same
//	reviews under way             user/address   anybody          50 of each kind, 25 for one; 10 s       wait
//	reviews that wait             user/address   anybody          32 MiB of each kind; 10 s               longest line's last
//	impersonations (library)      user           certificates     10 s, successful ones only              expire
//
// Forwarded requests:
//
//	places upstream               user           clients          maxForwardsInFlight; half a user        wait
//	forwards that wait            user           clients          an eighth of the workspace; 1 min       429, largest waiter first
//	request body read ahead       request        clients          64 KiB                                  streamed
//	answer not read yet           request        slow clients     256 KiB to 1 MiB                        upstream waits
//	answers gathered              request        clients          64 KiB                                  streamed
//	answers that are shared       flight         equal reads      4 MiB each, in the workspace            each asks alone
//	reads while upstream is lost  request        clients          64 reads, 256 watches                   429
//	watches from before the log   request        clients          32                                      410
//	the same read at a time       flight         equal reads      1, or 8 where its time is known         wait for the next
//	lists that upstream answers   user           readers          32, half a user; until it has answered  the cache answers
//	sooner
//	reads that leave a slow run   read           readers          10 a second, 4 at once                  wait on
//
// Reads and watches from the cache:
//
//	slots for dear reads          user           readers          GOMAXPROCS - 1, at least 1; 2 ms turns  wait
//	dear reads that wait          user           readers          a sixteenth of the workspace            429
//	long answers that wait        answer         readers          64 KiB each; open requests              none, they wait
//	one-off bodies                user           readers          the workspace; half a user              forwarded
//	one-off lists while written   user           readers          64 KiB, 32 KiB to indent; 1.5 MiB of    forwarded
//	                                                              the workspace to compress
//	garbage of one-off bodies     process        readers          half of the workspace                   collected
//	derived bytes, selections     page, form     readers          cache.derived.maxBytes                  least often read
//	their frequencies             hash           readers          1 % of that                             halved
//	their admissions (library)    hash           readers          100,000 times                           any
//	parsed selector               read, watch    readers          1,000 terms                             forwarded
//	open watches                  user           clients          limits.maxWatchesPerIdentity            429
//	unread events of a watch      watch          slow clients     64 KiB or one event; Stall              nothing is polled
//	unsent bytes in the kernel    connection     slow clients     128 KiB and what the client's window has  the write waits
//	socket left-overs             connection     slow clients     128 KiB                                 cut
//	pump's queue                  watch          events           one entry a watch                       none
//	cursors' indexes              watch          clients          open watches                            none
//	unwritable caches             cache          upstream         one weak entry a cache                  with the cache
//
// Feeds:
//
//	feeds                         resource       clients          resources that discovery shows; budget  idle ones stop
//	discovery documents           group-version  clients          what /apis lists; 4 requests at a time  none
//	refused, forbidden resources  resource       clients          1,000 each                              expired, then all
//	ledger of revisions           revision       upstream         65,536, half a MiB                      the oldest
//	ledger's watches              resource       clients          resources that discovery shows          end a minute after the last reader
//	event log                     resource       upstream         cache.log: age, events, bytes           oldest; watches get 410
//	checks of upstream            server         feeds            4 a second while it is away             joined
//	feeds that open or list       feed           feeds            8 at a time                             wait by urgency
//	watch event being read        feed           upstream         64 MiB                                  the stream ends
//
// Metrics:
//
//	group, version, resource      names          upstream         4,096 that were answered well           one series for the rest
//	feeds' labels                 names          upstream         what discovery shows                    none
//	all other labels              constants      nobody           the code                                none
//	upstream servers              configuration  nobody           the configuration                       none
//
// Pools (chunkBuffers, copyBuffers, scratches, listWriters, deflaters, gzips, gathered, pieces) keep
// what was in use at once until the collector takes it. A compressor takes some 1.2 MB, all others
// 128 KiB at most.
package main
