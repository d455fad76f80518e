// Command watchproxy is a caching watch proxy for the Kubernetes API.
//
// # Bounds
//
// These tables list everything in memory that clients, upstream or operators can fill: caches,
// maps, queues, pools and metrics. The last column says what happens beyond the bound. The
// workspace is memory for responses that are made for one request. Its size is an eighth of the
// memory budget, at most 128 MiB. "Half each" means that a user gets at most half of a bound. A
// client is known once its credentials have been accepted. bench/hostile tries to fill everything
// in these tables.
//
// Connections and requests:
//
//	what                          keyed by       filled by        bound                                   beyond
//	connections                   connection     any client       maxConnections + 1,000; open files       closed, counted
//	connections of a user         user           users            limits.maxConnectionsPerIdentity        429
//	request heads, incomplete     connection     any client       maxHeaderBytes; 16 MiB in all           closed
//	HTTP/2 frames, incomplete     connection     any client       16 KiB                                  closed
//	HTTP/2 bodies read ahead      connection     any client       64 KiB a stream, 4 MiB in all           flow control
//	requests of unknown senders   address        any client       as much as the workspace, half each     429
//	HTTP/2 uploads answered early stream         any client       100 a connection                        reset at once
//	unread responses              stream         unknown clients  1,000 over all connections              reset
//	fasthttp's buffers            request        any client       one a request; kept for 1 s             reused
//	admin connections             connection     any client       32, idle for 1 min                      silent one of the busiest address
//	access log line               request        any client       512 bytes of each text; sampled         cut
//	audit event of an open watch  watch          clients          3 KiB, maxHeaderBytes, maxURIBytes      none
//	audit events, mode batch      request        any client       10,000; 64 MiB                          lost, counted
//	audit log                     file           any client       audit.logMaxSize, logMaxBackups + 1     oldest file
//	spans to be sent (library)    request        clients          2,048                                   lost
//
// Access:
//
//	decisions of access           digest, user   users            16 MiB; TTL + 10 s                      largest holder's least recent
//	good tokens                   digest         token holders    16 MiB; TTL + 10 s                      the same
//	refused tokens                digest         any client       8 MiB; 20 s                             the same
//	reviews in flight             user/address   any client       50 of each kind, half each; 10 s         wait
//	reviews that wait             user/address   any client       32 MiB of each kind; 10 s               largest waiter's last
//	verified certificates         connection     any client       1                                       with the connection
//	long chains of certificates   address        any client       10 certificates; 1 verified at a time   401; wait
//	long chains that wait         address        any client       8 MiB                                   largest waiter's last
//	rights to impersonate         request        users            32 reviews, 10 s                        forwarded
//	impersonated users (library)  user           certificates     successful ones only; 10 s              forgotten
//
// Forwarded requests:
//
//	forwards in flight            user           clients          maxForwardsInFlight, half each           wait
//	forwards that wait            user           clients          3/32 of the workspace; 1 min            429, largest waiter first
//	HTTP/1.1 connections upstream request        any client       1 for each forward in flight without    wait
//	                                                              verified credentials, and each upgrade
//	request body read ahead       request        clients          64 KiB; more in the workspace           streamed
//	unread responses              request        slow clients     64 KiB to 1 MiB                         upstream waits
//	unread watches and logs       user           slow clients     the same, in the workspace              the response ends
//	responses of slow clients, if user           slow clients     4 MiB each, in the workspace            hold their slots
//	half of the slots are taken
//	short responses, buffered     request        clients          64 KiB                                  streamed
//	shared responses              flight         equal reads      4 MiB each, in the workspace            each reader asks upstream
//	reads of a stale cache        user           clients          64 reads, 256 watches, half each        wait
//	those that wait               user           clients          1/32 of the workspace; 10 s             429
//	watches from before the log   request        clients          32                                      410
//	equal reads in flight         flight         equal reads      1; 8 if upstream's time is known        wait for the next
//	lists that upstream answers   user           readers          32, half each, until upstream answers   the cache answers
//	faster than the cache
//	reads that stop waiting for   read           readers          10 a second, 16 at the same time        keep waiting
//	a slow proof of freshness
//
// Reads and watches from the cache:
//
//	expensive reads               user           readers          GOMAXPROCS - 1, at least 1; 2 ms turns  wait
//	expensive reads that wait     user           readers          a sixteenth of the workspace            429
//	long responses that wait      response       readers          64 KiB for each open request            cannot be exceeded
//	copies of discovery, OpenAPI  path, form     upstream         half of the workspace, at most 64 MiB   least recently used
//	requests for these copies     path, Accept   readers          1,024 of 1 KiB                          least recently used
//	new discovery documents       user           readers          8 MiB each while they arrive            forwarded
//	revalidations                 document       readers          1 at a time, 20 and 20 a second         wait for the next
//	one-off bodies                user           readers          the workspace, half each                forwarded
//	lists written for one         user           readers          64 KiB; 32 KiB more to indent, 1.5 MiB  forwarded
//	request                                                       of the workspace to compress
//	garbage of one-off bodies     process        readers          half of the workspace                   collected
//	derived bytes, selections     page, form     readers          cache.derived.maxBytes                  least often read
//	their read frequencies        hash           readers          1 % of cache.derived.maxBytes           halved
//	times of admission (library)  hash           readers          100,000                                 any entry is dropped
//	parsed selector               read, watch    readers          1,000 terms                             forwarded
//	open watches                  user           clients          limits.maxWatchesPerIdentity            429
//	unread events of a watch      watch          slow clients     64 KiB or one event; Stall              nothing is polled
//	HTTP/1.1 input in a watch     connection     clients          8 KiB; the rest is discarded            closed after the watch
//	unsent bytes in the kernel    connection     slow clients     128 KiB and the client's window         the write waits
//	unsent bytes of a socket      connection     slow clients     128 KiB                                 cut
//	pump's queue                  watch          events           one entry a watch                       none
//	cursors' indexes              watch          clients          open watches                            none
//	unwritable caches             cache          upstream         one weak entry a cache                  with the cache
//	rules of Tables               cache          upstream         one for each weak entry of a cache      with the cache
//
// Feeds:
//
//	feeds                         resource       clients          resources in discovery; budget          idle ones stop
//	feeds of namespaces, objects  scope          clients          200, unless configured                  forwarded
//	discovery documents           group-version  clients          what /apis lists; 4 requests at a time  none
//	refused, forbidden resources  resource       clients          1,000 each                              expired, then all
//	ledger of revisions           revision       upstream         65,536, half a MiB                      the oldest
//	ledger's watches              resource       clients          resources in discovery                  end a minute after the last reader
//	event log                     resource       upstream         cache.log: age, events, bytes           oldest; watches get 410
//	checks of upstream            server         feeds            4 a second while it is away             joined
//	feeds that open or list       feed           feeds            8 at a time                             wait by urgency
//	incomplete watch event        feed           upstream         64 MiB                                  the stream ends
//
// Metrics:
//
//	group, version, resource      names, verb,   upstream         4,096 with a successful answer          one series for the rest
//	                              scope, source
//	feeds' labels                 names, scope   upstream         what discovery shows; the feeds' bound  none
//	all other labels              constants      the code         the code                                none
//	upstream servers              configuration  operators        the configuration                       none
//	lags not counted yet          pump           events           16 runs of equal arrival                counted early
//
// Logs:
//
//	lines about requests          process        clients          5 a second                              counted in the next line
//	a client's text in a line     field          clients          512 bytes                               truncated
//
// The pools are chunkBuffers, copyBuffers, scratches, listWriters, deflaters, gzips, buffers and
// pieces. Until the garbage collector runs, a pool keeps as many objects as were in use at its
// peak. A compressor uses some 1.2 MB, and every other object at most 128 KiB.
package main
