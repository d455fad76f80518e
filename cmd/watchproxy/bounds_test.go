package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// reason stands for the tests of a row that none can fill cheaply.
func reason(text string) string { return "reason: " + text }

// fills has the tests that fill each row of the tables in BOUNDS.md to its bound, or that check the
// bound itself. A row without a test has a reason. There may be few such rows.
var fills = map[string][]string{
	"connections":               {"TestDescriptorsBoundConnections", "TestSlowClientsAreCut"},
	"connections of a user":     {"TestPerUserCounts"},
	"begun requests":            {"TestHeadsAreBounded", "TestHandshakesAreBounded", "TestBytesAheadAreBounded", "TestHeaderBlocksAreBounded"},
	"▲ HTTP/2 frame":            {"TestLargeFrame"},
	"▲ client certificates":     {"TestLongCertificatesAreRefused", "TestLength"},
	"▲ control responses":       {"TestUnreadAnswersAreBounded"},
	"▲ early responses":         {"TestEarlyResponsesAreBounded"},
	"▲ input during a watch":    {"TestRequestsAfterAStream"},
	"HTTP/2 streams":            {"TestRapidReset"},
	"requests, unknown client":  {"TestUnauthenticatedRequestsAreBounded"},
	"requests, known client":    {"TestOpenRequestsAreBounded", "TestUnreadGetsAreBounded", "TestImpersonatingRequestsAreBounded"},
	"HTTP/2 bodies ahead":       {"TestWaitingBodiesLetOthersPass", "TestBodyThatIsReadSlowly"},
	"HTTP/1.1 buffers":          {"TestOpenRequestsAreBounded"},
	"responses to strangers":    {"TestStrangersAreBounded"},
	"buffers of long bodies":    {"TestLargeBuffersAreBounded"},
	"unread HTTP/2 writes":      {"TestUnreadCachedWatchesHoldRoom", "TestUnreadAnswersAreBounded"},
	"unsent bytes, kernel":      {"TestUnsentIsLimited"},
	"unsent bytes, socket":      {"TestLeftIsBounded"},
	"admin connections":         {"TestBoundedClosesTheCrowd", "TestProbesBesideIdleConnections", "TestUnfinishedRequests"},
	"access log line":           {"TestAccessLogIsShort"},
	"audit events, mode batch":  {"TestQueueIsBoundedInBytes"},
	"audit log":                 {"TestRotation"},
	"spans (library)":           {reason("the queue is OpenTelemetry's, with its default size")},
	"decisions of access":       {"TestOutcomesAreBounded", "TestOutcomesExpire", "TestDecisionsTakeLittle"},
	"grants in views":           {"TestBounds", "TestBytes", "TestIdle"},
	"good tokens":               {"TestOutcomesAreBounded", "TestTokensAreBounded"},
	"refused tokens":            {"TestTokensAreBounded", "TestMadeUpTokensBlockNoOther"},
	"reviews in flight":         {"TestFloodOfReviews"},
	"reviews that wait":         {"TestFloodOfReviews"},
	"verified certificates":     {"TestOnce", "TestDropped"},
	"long chains":               {"TestLength", "TestTurns"},
	"long chains that wait":     {"TestTurns", "TestFairQueueIsFull"},
	"rights to impersonate":     {"TestDoubtfulImpersonation", "TestReviewsOfTheImpersonatedAreTheCallers"},
	"impersonated (library)":    {reason("the cache is k8s.io/apiserver's, and each of its entries needs a review")},
	"forwards in flight":        {"TestBurstOfWritesIsQueued", "TestUnreadForwardIsCut", "TestStreamWindow"},
	"forwards that wait":        {"TestPatienceOfForwards"},
	"requests given up":         {"TestGivenUpRequestsAreBounded"},
	"HTTP/1.1 upstream":         {"TestConnectionsOfEachKind", "TestUpgradedTakesNoSlot"},
	"bodies kept to repeat":     {"TestWhole", "TestShortBodyCanBeSentAgain", "TestSlowUploadsHoldNoSlots"},
	"unread watches, logs":      {"TestUnreadWatchesHoldRoom", "TestUnreadLogLosesItsRoom"},
	"tunnels":                   {"TestTunnelsAreCounted"},
	"responses read ahead":      {"TestUnreadForwardsShareSlots"},
	"shared responses":          {"TestSharedAnswerIsAccounted"},
	"equal reads in flight":     {"TestPace", "TestSharedAnswersAreConsistent", "TestEqualReadsAreNotHeldUp"},
	"reads of a stale cache":    {"TestStaleSlots"},
	"those that wait":           {"TestStaleSlots", "TestFairQueueIsFull"},
	"watches before the log":    {"TestLateSlotsAreFew", "TestLateSlotsAreShared"},
	"lists sooner upstream":     {"TestFewListsGoSooner"},
	"reads that leave a proof":  {"TestReadsBesideWrites"},
	"expensive reads":           {"TestExpensiveReadTakesTurns", "TestUnreadListHoldsNoSlot"},
	"long steps":                {"TestLongTurnsHaveTheirOwnSlots", "TestTurnsOfLargeObjectsAreDivided"},
	"expensive, waiting":        {"TestExpensiveReadWait", "TestFairQueueIsFull"},
	"one-off bodies":            {"TestWorkspaceIsFull", "TestWorkspaceOfSlowReader", "TestUnreadGetsAreBounded"},
	"one-off compressors":       {"TestOneOffListsAreThePlainOnes"},
	"states of lists":           {"TestListEndsWithItsState", "TestSlowListIsCut"},
	"copies of discovery":       {"TestBounds", "TestTooLong"},
	"requests for copies":       {"TestBounds"},
	"documents that arrive":     {"TestTooLong", "TestUnansweredRevalidation"},
	"revalidations":             {"TestClientsShareARevalidation", "TestPace"},
	"derived bytes":             {"TestDerivedKeepsToTheLimit", "TestSelectionMemory"},
	"frequencies (library)":     {reason("the counters are ristretto's; TestDerivedKeepsToTheLimit fills the cache that they belong to")},
	"admissions (library)":      {reason("the counters are ristretto's; TestDerivedKeepsToTheLimit fills the cache that they belong to")},
	"parsed selectors":          {"TestLongSelectorsAreForwarded", "TestMemoryOfWatchesIsBounded"},
	"open watches":              {"TestMemoryOfWatchesIsBounded", "TestLastingForwardsAreCounted"},
	"unread events":             {"TestUnreadCachedWatchesHoldRoom", "TestUnreadWatchHoldsOnePiece", "TestLargeEventsOfOneWatchNeedRoom"},
	"shared events":             {"TestOldEventsAreNotKept", "TestEventsAreKeptApart"},
	"shared events, long":       {"TestFewLongEventsAreKept", "TestLargeEventsAreShared"},
	"pump's queue":              {"TestPump"},
	"cursors' indexes":          {"TestInterests"},
	"events a form cannot show": {"TestUnwritableObjectsAreBounded", "TestEventsForgetCaches"},
	"Tables' rules":             {"TestMemoryOfRows"},
	"feeds":                     {"TestNoNewFeeds", "TestFeedThatDoesNotFitIsGivenUp", "TestThresholds", "TestLargestFeedIsGivenUp"},
	"feeds of narrow scopes":    {"TestNarrowFeedsAreBounded", "TestLongNamesAreNoScopes"},
	"discovery documents":       {"TestMadeUpNames", "TestDiscoveryIsShared"},
	"refused, forbidden":        {"TestNarrowFeedsAreBounded"},
	"definitions":               {"TestOutdatedDefinition"},
	"ledger of revisions":       {"TestLedgerIsBounded"},
	"ledger's watches":          {"TestLedgerEnds"},
	"ledger's members":          {"TestMembersAreBounded"},
	"event log":                 {"TestLog", "TestLogsAreShed"},
	"checks of upstream":        {"TestReadsWaitForUpstreamTogether", "TestTurns"},
	"feeds that open or list":   {"TestTurns", "TestMostUrgentComesFirst"},
	"events to be published":    {"TestBatchesArePublishedTogether", "TestQuietStreamsAsk"},
	"incomplete watch event":    {"TestMalformedProtoStreams"},
	"lists of upstream":         {"TestSilentStateIsReadInPages", "TestTurns"},
	"names of resources":        {"TestLabelsAreBounded"},
	"feeds' labels":             {"TestNarrowFeedsAreBounded"},
	"all other labels":          {"TestLabelsAreBounded"},
	"upstream servers":          {reason("the operator names each server")},
	"lags not counted yet":      {"TestDeliveryLag"},
	"users in /users":           {"TestUsersAreBounded"},
	"recent forwards":           {"TestRecent"},
	"users in a queue":          {"TestFairQueueRemembersWhoRests", "TestFairQueueOfManyUsers"},
	"lines about requests":      {"TestRemarks"},
	"a client's text":           {"TestAccessLogIsShort", "TestLibraryLinesAreShort"},
}

// reasonsMost is the maximum number of rows with a reason instead of a test.
const reasonsMost = 5

// constants has constants of the rows: a package, a name, the source of its value, and the text that
// says the same in the row.
var constants = []struct{ row, folder, name, value, text string }{
	{"begun requests", "proxy/conn", "headsMax", "16 << 20", "16 MiB unknown, 16 MiB known"},
	{"begun requests", "proxy/conn", "handshakeTimeout", "10 * time.Second", "10 s"},
	{"▲ HTTP/2 frame", "proxy/h2", "frameMax", "16 << 10", "16 KiB"},
	{"▲ client certificates", "proxy/access", "certificatesMax", "16 << 10", "16 KiB"},
	{"▲ client certificates", "proxy/access/chain", "longest", "10", "10 certificates"},
	{"▲ control responses", "proxy/h2", "controlUnknown", "16 << 10", "16 KiB unknown"},
	{"▲ control responses", "proxy/h2", "controlMax", "64 << 10", "64 KiB known"},
	{"▲ early responses", "proxy/h2/frame", "earlyMax", "100", "100 a connection"},
	{"▲ input during a watch", "proxy/conn", "aheadOfStream", "8 << 10", "8 KiB"},
	{"HTTP/2 streams", "proxy/h2", "streamsMax", "1000", "1,000"},
	{"HTTP/2 bodies ahead", "proxy/h2", "windowStream", "64 << 10", "64 KiB"},
	{"HTTP/2 bodies ahead", "proxy/h2", "windowConn", "4 << 20", "4 MiB a connection"},
	{"HTTP/1.1 buffers", "proxy/listen", "shortHead", "4 << 10", "4 KiB"},
	{"HTTP/1.1 buffers", "proxy/conn", "warmTime", "time.Second", "1 s"},
	{"responses to strangers", "proxy/h2", "strangersMax", "1000", "1,000"},
	{"buffers of long bodies", "proxy/fair", "LargeMost", "512", "512"},
	{"buffers of long bodies", "proxy/fair", "WriteSize", "64 << 10", "64 KiB"},
	{"unsent bytes, kernel", "proxy/conn", "unsentMax", "2 * exchange.PieceSize", "128 KiB"},
	{"unsent bytes, socket", "proxy/conn", "leftMax", "2 * exchange.PieceSize", "128 KiB"},
	{"admin connections", "proxy/admin", "connections", "32", "32"},
	{"admin connections", "cmd/watchproxy", "adminIdle", "time.Minute", "idle 1 min"},
	{"audit events, mode batch", "proxy/audit", "queuedEvents", "10_000", "10,000"},
	{"audit events, mode batch", "proxy/audit", "queuedBytes", "64 << 20", "64 MiB"},
	{"decisions of access", "proxy/access", "decisionsMax", "16 << 20", "16 MiB"},
	{"grants in views", "proxy/grants", "most", "64 << 20", "64 MiB"},
	{"grants in views", "proxy/grants", "userMost", "16 << 20", "16 MiB"},
	{"grants in views", "proxy/grants", "idle", "time.Hour", "1 h unused"},
	{"good tokens", "proxy/access", "tokensMax", "16 << 20", "16 MiB"},
	{"refused tokens", "proxy/access", "refusedMax", "8 << 20", "8 MiB"},
	{"refused tokens", "proxy/access", "outcomeCost", "360", "360 bytes"},
	{"reviews in flight", "proxy/access", "reviewsMax", "50", "50 of each kind"},
	{"reviews in flight", "proxy/access", "reviewTimeout", "10 * time.Second", "10 s"},
	{"reviews that wait", "proxy/access", "waitingMax", "32 << 20", "32 MiB"},
	{"long chains that wait", "proxy/access/chain", "waitingMax", "8 << 20", "8 MiB"},
	{"rights to impersonate", "proxy/access", "impersonationRights", "32", "32 reviews"},
	{"reads of a stale cache", "proxy", "fallbackReads", "64", "64, 256 watches"},
	{"reads of a stale cache", "proxy", "fallbackWatches", "256", "256 watches"},
	{"those that wait", "proxy", "fallbackWait", "10 * time.Second", "10 s"},
	{"watches before the log", "proxy", "lateMax", "32", "32"},
	{"lists sooner upstream", "proxy", "soonerMost", "32", "32"},
	{"requests given up", "proxy", "givenUpMost", "400", "400"},
	{"requests given up", "proxy", "givenUpTime", "time.Second", "1 s"},
	{"shared responses", "proxy/forward", "shareMax", "4 << 20", "4 MiB"},
	{"equal reads in flight", "proxy/fair", "groupMost", "8", "8 if"},
	{"reads that leave a proof", "watchcache/upstream/fresh", "EarlyBurst", "16", "16 at once"},
	{"reads that leave a proof", "watchcache/upstream/fresh", "earlyRate", "10", "10 a second"},
	{"one-off compressors", "proxy/read", "compressorSize", "1536 << 10", "1.5 MiB"},
	{"copies of discovery", "proxy/documents", "bodyMost", "8 << 20", "8 MiB"},
	{"requests for copies", "proxy/documents", "formsMost", "1024", "1,024"},
	{"revalidations", "proxy/documents", "burst", "20", "20, then 20 a second"},
	{"parsed selectors", "proxy/query", "selectorTerms", "1000", "1,000 terms"},
	{"open watches", "proxy", "watchSize", "2 << 10", "2 KiB"},
	{"unread events", "proxy/exchange", "PieceSize", "64 << 10", "64 KiB"},
	{"shared events", "proxy/watch", "eventShards", "16", "16 MiB"},
	{"shared events", "proxy/watch", "longEvent", "256 << 10", "256 KiB"},
	{"shared events, long", "proxy/watch", "longEvents", "4", "4 events"},
	{"events a form cannot show", "proxy/unwritable", "namespaceMost", "100", "100 of a namespace"},
	{"events a form cannot show", "proxy/unwritable", "cacheMost", "1000", "1,000 of a cache"},
	{"feeds", "cmd/watchproxy/memory", "feedsEnd", "0.90", "90 % of the budget"},
	{"feeds", "watchcache/upstream", "noMemoryPause", "10 * time.Minute", "10 min"},
	{"feeds of narrow scopes", "watchcache/upstream", "NarrowFeedsMax", "200", "200"},
	{"feeds of narrow scopes", "watchcache/upstream", "narrowBurst", "50", "50 starts"},
	{"discovery documents", "watchcache/upstream/discovery", "Max", "4", "4 requests"},
	{"refused, forbidden", "watchcache/upstream", "refusalsMax", "1000", "1,000"},
	{"ledger of revisions", "watchcache/upstream/ledger", "ledgerSize", "1 << 16", "65,536"},
	{"feeds that open or list", "watchcache/upstream/servers", "openingMax", "8", "8"},
	{"events to be published", "watchcache/upstream/feed", "batchMax", "256", "256"},
	{"incomplete watch event", "watchcache/upstream/client", "maxEvent", "64 << 20", "64 MiB"},
	{"lists of upstream", "watchcache/upstream/client", "PageSize", "500", "500"},
	{"names of resources", "proxy/metrics", "namesMost", "4096", "4,096"},
	{"lags not counted yet", "proxy/watch", "lateRunsMax", "16", "16 runs"},
	{"users in /users", "proxy/metrics", "usersMost", "4096", "4,096"},
	{"recent forwards", "proxy/metrics", "recentKinds", "256", "256"},
	{"users in a queue", "proxy/fair", "flowsRested", "256", "256"},
	{"lines about requests", "proxy", "remarkLines", "5", "5 a second"},
}

// columns are the columns of the tables.
var columns = []string{"what", "by, filled by", "bound for one", "sum over the process", "beyond", "released when"}

// boundRows returns the rows of the tables in BOUNDS.md, by their first column.
func boundRows(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("BOUNDS.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") {
			continue
		}
		row := strings.Split(strings.Trim(line, "| \n"), " | ")
		switch {
		case slices.Equal(row, columns):
		case len(row) != len(columns):
			t.Errorf("%q has %d columns, want %q", line, len(row), columns)
		case rows[row[0]] != nil:
			t.Errorf("two rows are called %q", row[0])
		default:
			rows[row[0]] = row
		}
	}
	return rows
}

// Each row of the tables of bounds has all columns, a sum over the process, and a moment of release. It
// names tests that exist, and its constants are those of the code.
func TestBounds(t *testing.T) {
	rows := boundRows(t)
	if got, want := slices.Sorted(maps.Keys(rows)), slices.Sorted(maps.Keys(fills)); !slices.Equal(got, want) {
		t.Fatalf("the tables have the rows %q,\nthe tests are those of %q", got, want)
	}
	for what, row := range rows {
		for i, cell := range row {
			if cell == "" || cell == "-" || cell == "–" || cell == "none" || strings.Contains(cell, "client's pace") {
				t.Errorf("%s: %s is %q", what, columns[i], cell)
			}
		}
	}
	tests, reasons := testNames(t), 0
	for what, names := range fills {
		if len(names) == 0 {
			t.Errorf("%s has no test", what)
		}
		for _, name := range names {
			if strings.HasPrefix(name, reason("")) {
				reasons++
			} else if !tests[name] {
				t.Errorf("%s: there is no %s", what, name)
			}
		}
	}
	if reasons > reasonsMost {
		t.Errorf("%d rows have no test, at most %d may", reasons, reasonsMost)
	}
	for _, c := range constants {
		if value := valueOf(t, c.folder, c.name); value != c.value {
			t.Errorf("%s: %s is %s in %s, not %s", c.row, c.name, value, c.folder, c.value)
		}
		if text := strings.Join(rows[c.row], " | "); !strings.Contains(text, c.text) {
			t.Errorf("%s: %q does not say %s", c.row, text, c.text)
		}
	}
}

// testNames returns the names of all tests of the product and of bench.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, top := range []string{"cmd", "proxy", "watchcache", "config", "bench/hostile"} {
		err := filepath.WalkDir(filepath.Join("..", "..", top), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
					names[f.Name.Name] = true
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return names
}

// valueOf returns the source of a constant's value.
func valueOf(t *testing.T, folder, name string) (value string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != len(spec.Names) {
				return true
			}
			for i, id := range spec.Names {
				if id.Name != name {
					continue
				}
				var text bytes.Buffer
				if err := printer.Fprint(&text, fset, spec.Values[i]); err != nil {
					t.Fatal(err)
				}
				value = text.String()
			}
			return true
		})
	}
	return value
}
