package proxy

import (
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/watchproxy/watchproxy/proxy/exchange"
	"github.com/watchproxy/watchproxy/proxy/metrics"
)

type requestLog struct {
	options  *atomic.Pointer[Options]
	metrics  *metrics.Metrics
	log      *zap.Logger
	remarks  *rate.Limiter // if everything fails, the first lines suffice
	unlogged atomic.Int64  // lines that remarks did not allow since the last line
}

func newRequestLog(
	options *atomic.Pointer[Options], metrics *metrics.Metrics, log *zap.Logger,
) *requestLog {
	remarks := rate.NewLimiter(remarkLines, remarkBurst)
	return &requestLog{
		options: options,
		metrics: metrics,
		log:     log,
		remarks: remarks,
	}
}

// answered counts a request before its response is written. Then the request is logged if it
// failed, was refused by a limit, was slow, or belongs to the sample.
func (l *requestLog) answered(req *exchange.Request, resp *exchange.Response, took time.Duration) {
	l.metrics.Answered(req.Route, resp, took)
	if _, ok := resp.Body.(exchange.Stream); ok {
		l.watchAnswered(req, resp, took)
		return
	}
	if resp.Long() {
		req.End()
	}
	resp.Release = &delivery{
		log:   l,
		req:   req,
		resp:  resp,
		began: time.Now().Add(-took),
		took:  took,
	}
}

type delivery struct {
	log   *requestLog
	req   *exchange.Request
	resp  *exchange.Response
	began time.Time
	took  time.Duration // until the response
}

// Written implements exchange.Release.
func (d *delivery) Written(bytes int64) {
	l := d.log
	d.req.End()
	d.req.Free()
	whole := time.Since(d.began)
	l.metrics.Written(d.req.Route, d.resp, whole, bytes)
	waited := whole
	if d.resp.Long() {
		waited = d.took
	}
	remark := l.remark(d.req, d.resp, waited)
	if remark == "" && !l.isSampled() {
		return
	}
	fields := requestFields(d.req, d.resp)
	if remark != "" {
		l.logRemark(remark, fields, d.took,
			zap.Duration("duration", whole), zap.Int64("bytes", bytes))
		return
	}
	l.logSample(fields, d.took, whole, bytes)
}

// watchAnswered is answered for a watch from the cache. It does not keep the request in memory.
func (l *requestLog) watchAnswered(
	req *exchange.Request, resp *exchange.Response, took time.Duration,
) {
	req.End()
	req.Free()
	if remark := l.remark(req, resp, took); remark != "" {
		l.logRemark(remark, requestFields(req, resp), took)
	}
	if l.isSampled() {
		resp.Release = &sampledWatch{l, requestFields(req, resp), time.Now().Add(-took), took}
	}
}

type sampledWatch struct {
	log    *requestLog
	fields []zap.Field
	began  time.Time
	took   time.Duration // until its beginning
}

// Written implements exchange.Release.
func (w *sampledWatch) Written(bytes int64) {
	w.log.logSample(w.fields, w.took, time.Since(w.began), bytes)
}

func (l *requestLog) logSample(fields []zap.Field, took, whole time.Duration, bytes int64) {
	l.log.Info("request", append(fields,
		zap.Duration("latency", took), zap.Duration("duration", whole),
		zap.Int64("bytes", bytes))...)
}

func (l *requestLog) isSampled() bool {
	sampling := l.options.Load().AccessLog
	return sampling != 0 && rand.Float64() < sampling
}

// slowRequest is the duration from which a user's requests are logged.
const slowRequest = 2 * time.Second

// remark returns the message with which a request is logged outside the sample, or "" if it is not.
// Slow requests of unknown clients are not logged, because such a client may read its refusal late.
func (l *requestLog) remark(
	req *exchange.Request, resp *exchange.Response, took time.Duration,
) (message string) {
	own := resp.Source == exchange.FromProxy && resp.MetricStatus != exchange.ClientLeft
	switch {
	case own && resp.Status == http.StatusTooManyRequests:
		message = "request refused"
	case own && resp.Status >= http.StatusInternalServerError:
		message = "request failed"
	case took >= slowRequest && (req.Identity != nil || l.options.Load().Access == nil):
		message = "slow request"
	}
	if message == "" || !l.allow() {
		return ""
	}
	return message
}

func (l *requestLog) logRemark(
	message string, fields []zap.Field, latency time.Duration, more ...zap.Field,
) {
	l.log.Warn(message, append(append(fields, more...),
		zap.Duration("latency", latency), zap.Int64("unlogged", l.unlogged.Swap(0)))...)
}

func (l *requestLog) logUnread(req *exchange.Request) {
	if l.allow() {
		l.log.Warn("unread response ended",
			zap.String("user", short(req.User())), zap.String("sourceAddress", req.Address()),
			zap.Int64("unlogged", l.unlogged.Swap(0)))
	}
}

// remarkLines limits the remarks and lines of logUnread a second, remarkBurst those at once.
const remarkLines, remarkBurst = 5, 20

func (l *requestLog) allow() bool {
	if l.remarks.Allow() {
		return true
	}
	l.unlogged.Add(1)
	return false
}

// requestFields returns log fields for a request. A client can choose some texts, but no long ones.
func requestFields(req *exchange.Request, resp *exchange.Response) []zap.Field {
	rt := &req.Route
	fields := []zap.Field{
		zap.String("verb", rt.Verb),
		zap.String("path", short(req.Path)),
		zap.Int("code", resp.Status),
		zap.String("source", string(resp.Source)),
		zap.String("user", short(req.User())),
	}
	if resp.Failure != nil {
		fields = append(fields, zap.String("error", short(resp.Failure.Message)))
	}
	for _, optional := range [][2]string{
		{"impersonatedUser", req.Header.Get("Impersonate-User")},
		{"sourceAddress", req.Address()},
		{"group", rt.GVR.Group},
		{"version", rt.GVR.Version},
		{"resource", rt.GVR.Resource},
		{"subresource", rt.Subresource},
		{"namespace", rt.Namespace},
		{"name", rt.Name},
		{"view", req.Route.View.String()},
		{"query", loggedQuery(req.Query)},
		{"forwardedBecause", resp.ForwardedBecause},
		{"userAgent", req.Header.Get("User-Agent")},
		{"auditID", resp.Header.Get("Audit-Id")},
	} {
		if name, value := optional[0], optional[1]; value != "" {
			fields = append(fields, zap.String(name, short(value)))
		}
	}
	return fields
}

// loggedParameters are the parameters whose values are logged. Other values may be secret, such as
// the command of an exec or the query to a pod's own server, so only their names are logged.
var loggedParameters = []string{
	"allowWatchBookmarks", "container", "dryRun", "fieldManager", "fieldSelector",
	"fieldValidation", "follow", "force", "includeObject", "labelSelector", "limit", "limitBytes",
	"pretty", "previous", "resourceVersion", "resourceVersionMatch", "sendInitialEvents",
	"shardSelector", "sinceSeconds", "tailLines", "timeout", "timeoutSeconds", "watch",
}

func loggedQuery(query string) string {
	const most = 64 // a longer query is truncated anyway
	var b strings.Builder
	n := 0
	for parameter := range strings.SplitSeq(query, "&") {
		if parameter == "" {
			continue
		}
		if n++; n > most {
			break
		}
		if b.Len() > 0 {
			b.WriteByte('&')
		}
		name, value, _ := strings.Cut(parameter, "=")
		unescaped, err := url.QueryUnescape(name)
		if err != nil || !slices.Contains(loggedParameters, unescaped) {
			value = "…"
		}
		b.WriteString(name + "=" + value)
	}
	return b.String()
}

func short(s string) string {
	const most = 512
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
