// Command watchproxy is a caching watch proxy for the Kubernetes API.
//
// # Bounds
//
// These tables list everything in memory that clients, upstream or operators can fill: caches,
// maps, queues, pools and metrics. TestBounds names the tests that fill each row, and bench/hostile
// attacks a whole proxy. A row has these columns:
//
//	by, filled by         what has a bound of its own, and who can fill it
//	bound for one         the most that one of them may take
//	sum over the process  the most that all of them may take
//	beyond                the effect of exceeding a bound
//	released when         when the memory, the slot or the entry is given back
//
// The budget is the garbage collector's limit, which follows memoryBudget. The workspace is memory
// for responses that are made for one request and for bytes that clients leave unread: an eighth of
// the budget, at most 128 MiB. The requests' memory is a quarter of the budget (512 MiB without a
// budget), and that of open watches half of it (1 GiB). "Shared" means that a user, or an unknown
// client's address, may hold no more than stays free: one gets half, and two get a third each. A
// client is known once its credentials have been accepted. The number of connections is configured,
// and does not follow the budget. The rows with ▲ are part of a connection: with them it may take 130
// KiB until its client is known.
//
// Connections and requests:
//
//	what                      by, filled by         bound for one                 sum over the process        beyond              released when
//	connections               connection, anyone    28 KiB at first, and rows ▲   maxConnections + 1,000;     closed, counted     closed;
//	                                                                              open files                                      idleTimeout; 45 s
//	connections of a user     user, users           maxConnectionsPerIdentity     maxConnections              429                 closed
//	begun requests            user, address,        maxHeaderBytes; handshake     16 MiB unknown, 16 MiB      closed, counted     complete; 10 s,
//	                          anyone                256 KiB                       known, shared                                   readTimeout
//	▲ HTTP/2 frame            connection, anyone    16 KiB, and 16 KiB of fields  the connections'            FRAME_SIZE_ERROR    connection's end
//	▲ client certificates     connection, anyone    16 KiB, 10 certificates       the connections'            closed, 401         connection's end
//	▲ control responses       connection, anyone    16 KiB unknown, 64 KiB known  the connections'            ENHANCE_YOUR_CALM   read; writeTimeout
//	▲ early responses         stream, anyone        100 a connection, 4 KiB       the connections'            reset at once       client answers
//	                                                                                                                              PINGs
//	▲ input during a watch    connection, clients   8 KiB                         begun requests              discarded           read; watch's end
//	HTTP/2 streams            connection, anyone    1,000                         requests                    REFUSED_STREAM      response written
//	requests, unknown client  address, anyone       8 KiB, head twice, 64 KiB     workspace, shared           429                 review's end, 10 s
//	                                                body
//	requests, known client    user, users           the same, selectors,          quarter of budget, shared   429                 response written
//	                                                response
//	HTTP/2 bodies ahead       stream, anyone        64 KiB; 4 MiB a connection    requests                    flow control        read; request's end
//	HTTP/1.1 buffers          request, anyone       4 KiB; maxHeaderBytes if      requests                    reused              1 s after the
//	                                                long                                                                          response
//	responses to strangers    stream, anyone        a Status                      1,000                       reset               read; writeTimeout
//	buffers of long bodies    user, readers         twice 64 KiB                  512, shared                 4 KiB pieces        body written
//	unread HTTP/2 writes      user, slow ones       192 KiB                       workspace, shared           closed              read; writeTimeout;
//	                                                                                                                              wanted
//	unsent bytes, kernel      connection, slow      128 KiB, and client's window  net.ipv4.tcp_mem            the write waits     read; writeTimeout
//	                          ones
//	unsent bytes, socket      connection, slow      128 KiB                       workspace, shared           cut                 read; writeTimeout;
//	                          ones                                                                                                wanted
//	admin connections         address, anyone       1 MiB of head                 32                          silent one closed   idle 1 min; 2 min
//	access log line           request, anyone       512 bytes of each text        one for each request        cut                 written
//	audit events, mode batch  request, anyone       2 KiB, head twice             10,000; 64 MiB              lost, counted       written
//	audit log                 file, anyone          logMaxSize                    logMaxBackups + 1 files     oldest file         rotation; logMaxAge
//	spans (library)           request, clients      512 bytes of each text        2,048                       lost                sent
//
// Access:
//
//	what                      by, filled by         bound for one                 sum over the process        beyond              released when
//	decisions of access       user, users           256 KiB                       16 MiB                      largest's oldest    TTL + 10 s
//	grants in views           user, users           16 MiB                        64 MiB                      503; largest user's  1 h unused, at a use
//	                                                                                                          oldest
//	good tokens               address, token        256 KiB                       16 MiB                      largest's oldest    TTL + 10 s
//	                          holders
//	refused tokens            address, anyone       360 bytes                     8 MiB                       largest's oldest    20 s
//	reviews in flight         user, address,        25 of each kind               50 of each kind, shared     wait                10 s
//	                          anyone
//	reviews that wait         user, address,        4 KiB and the question        32 MiB of each kind         largest's last      turn; 10 s
//	                          anyone
//	verified certificates     connection, anyone    1 result                      open connections            not possible        connection's end
//	long chains               address, anyone       10 certificates               1 verified at a time        401; wait           verified
//	long chains that wait     address, anyone       4 KiB                         8 MiB                       largest's last      turn
//	rights to impersonate     request, users        32 reviews                    reviews in flight           forwarded           10 s
//	impersonated (library)    user, certificates    maxHeaderBytes                50 reviews at a time;       reviewed again      10 s
//	                                                                              10,000
//
// Forwarded requests:
//
//	what                      by, filled by         bound for one                 sum over the process        beyond              released when
//	forwards in flight        user, clients         64 KiB to 1 MiB               maxForwardsInFlight,        wait                response read;
//	                                                                              shared                                          writeTimeout
//	forwards that wait        user, clients         as a request                  3/32 of the workspace       429, largest first  turn; 1 min
//	requests given up         user, clients         1                             400, shared                 429                 1 s
//	HTTP/1.1 upstream         request, clients      1, and 1 for an upgrade       forwards, watches, 100      wait; 429           response's end;
//	                                                                              idle                                            idle 60 s
//	bodies kept to repeat     request, clients      64 KiB; more if there is      requests; workspace         streamed in a slot  request's end;
//	                                                room                                                                          1 min, 16 KiB/s
//	unread watches, logs      user, slow ones       64 KiB to 1 MiB               workspace, shared           response ends       read; writeTimeout;
//	                                                                                                                              wanted
//	tunnels                   user, clients         172 KiB;                      requests, shared            429                 tunnel's end
//	                                                maxWatchesPerIdentity
//	responses read ahead      user, slow ones       4 MiB                         workspace, shared           hold their slots    written; 64 KiB/s
//	shared responses          flight, equal reads   4 MiB                         workspace, shared           each reader asks    last reader has it
//	equal reads in flight     flight, equal reads   1; 8 if the time is known or  forwards in flight          wait for the next   response's end; 1
//	                                                after 1 min                                                                   min
//	reads of a stale cache    user, clients         1 slot                        64, 256 watches, shared     wait                response's end
//	those that wait           user, clients         as a request                  1/32 of the workspace       429                 slot; 10 s
//	watches before the log    user, clients         1 slot                        32, shared                  410                 watch's end
//	lists sooner upstream     user, readers         1 slot                        32, shared                  cache answers       response begins; 2
//	                                                                                                                              s
//	reads that leave a proof  read, readers         1                             16 at once, 10 a second     keep waiting        the next second
//
// Reads and watches from the cache:
//
//	what                      by, filled by         bound for one                 sum over the process        beyond              released when
//	expensive reads           user, readers         a turn of 2 ms, or a step     GOMAXPROCS - 1, at least 1  wait                turn's end
//	long steps                user, readers         1 MiB, or an object           as many of their own        wait                turn's end
//	expensive, waiting        user, readers         as a request                  1/16 of the workspace       429                 turn; 1 min
//	one-off bodies            user, readers         1 to 4 times its size         workspace, shared           forwarded           written; 64 KiB/s
//	one-off compressors       user, readers         1.5 MiB; 32 KiB to indent     workspace, shared           forwarded           written
//	states of lists           list, readers         its pages and objects         the event log, and a        list ends           written; 1 min, 64
//	                                                                              minute                                          KiB/s
//	copies of discovery       path and form,        8 MiB                         half of the workspace       least recently      newer document
//	                          upstream                                                                        used
//	requests for copies       path and Accept,      1 KiB                         1,024                       least recently      newer requests
//	                          readers                                                                         used
//	documents that arrive     user, readers         24 MiB while they arrive      workspace, shared           forwarded           read; 10 s
//	revalidations             document, readers     1; 20, then 20 a second       forwards in flight          wait for the next   10 s
//	derived bytes             page and form,        a page's                      cache.derived.maxBytes      least often read    page replaced; no
//	                          readers                                                                                             room
//	frequencies (library)     hash, readers         10 for each 8 KiB             1 % of maxBytes             halved              proxy's end
//	admissions (library)      hash, readers         1                             100,000                     any is dropped      piece dropped
//	parsed selectors          read or watch,        1,000 terms, 20 times the     requests, watches           forwarded           with the read or
//	                          readers               text                                                                          watch
//	open watches              user, clients         2 KiB, head, selectors;       half of the budget, shared  429                 watch's end
//	                                                maxWatchesPerIdentity
//	unread events             user, slow ones       twice 64 KiB, or one event    workspace, shared           watch ends          read;
//	                                                                                                                              cache.log.maxAge; wanted
//	shared events             event and form,       256 KiB                       16 MiB                      oldest              newer events
//	                          upstream
//	shared events, long       event and form,       an object's                   4 events                    oldest              newer events
//	                          upstream
//	pump's queue              watch, events         1 entry                       open watches                not possible        its turn
//	cursors' indexes          watch, clients        1 entry                       open watches                not possible        watch's end
//	events a form cannot show cache, users          100 of a namespace,           feeds                       their watches are   object gone from
//	                                                1,000 of a cache                                          forwarded           state and log
//	Tables' rules             cache, upstream       1 weak entry                  feeds                       not possible        cache's end
//
// Feeds:
//
//	what                      by, filled by         bound for one                 sum over the process        beyond              released when
//	feeds                     resource, clients     its objects and log           served resources; 90 % of   largest ends;       idleTimeout; its
//	                                                                              the budget                  forwarded 10 min    end
//	feeds of narrow scopes    scope, clients        1; 50 starts, then 2 a        200, unless configured      forwarded           idleTimeout
//	                                                second
//	discovery documents       group-version,        1 document                    what /apis lists; 4         wait, 10 s          group removed
//	                          clients                                             requests
//	refused, forbidden        resource or scope,    1 entry                       1,000 of each kind          expired, then all   2 s to 10 min
//	                          clients
//	definitions               name, upstream        1 entry                       upstream's definitions      not possible        definition deleted
//	ledger of revisions       revision, upstream    8 bytes                       65,536, half a MiB          the oldest          end of the ledger
//	ledger's watches          resource, readers     4 KiB, and an event           served resources            wait for turns      1 min after readers
//	ledger's owners           resource, upstream    1 entry                       65,535                      no proof            proxy's end
//	event log                 resource, upstream    cache.log: age, events,       each feed's; budget         oldest; 410         cache.log.maxAge
//	                                                bytes
//	checks of upstream        server, feeds         1                             4 a second while away       joined              2 s
//	feeds that open or list   feed, feeds           1 turn                        8                           wait by urgency     open or read; 5 s
//	events to be published    feed, upstream        256, or one revision's        each feed's                 published           revision complete
//	incomplete watch event    feed, upstream        64 MiB                        each feed's                 stream ends         read
//	lists of upstream         feed, upstream        a page of 500                 8 at a time                 wait                applied
//
// Metrics:
//
//	what                      by, filled by         bound for one                 sum over the process        beyond              released when
//	names of resources        names, verb, scope;   1 series of each metric       4,096                       one for the rest    proxy's end
//	                          upstream
//	feeds' labels             names and scope,      1 series of each metric       feeds                       not possible        feed's end
//	                          upstream
//	all other labels          constants, the code   1 series                      the code's                  not possible        proxy's end
//	upstream servers          configuration,        1 series of each metric       the configured              not possible        proxy's end
//	                          operators
//	lags not counted yet      pump, events          16 runs                       16 for each processor       counted early       batch's end
//	users in /users           user, anyone          256 bytes of the name         4,096 a minute              counted together    6 min
//	recent forwards           kind, clients         512 bytes of names            256 a minute                not counted         6 min
//	users in a queue          user, anyone          1 entry                       claims, and 256 more        forgotten           no claim waits
//
// Logs:
//
//	what                      by, filled by         bound for one                 sum over the process        beyond              released when
//	lines about requests      process, clients      1 line                        5 a second, 20 at once      counted in the      written
//	                                                                                                          next
//	a client's text           field, clients        512 bytes                     20 fields a line            truncated           written
//
// The pools are chunkBuffers, copyBuffers, scratches, listWriters, deflaters, gzips, buffers and
// pieces. Until the garbage collector runs, a pool keeps as many objects as were in use at its
// peak. A compressor uses some 1.2 MB, and every other object at most 128 KiB.
package main
