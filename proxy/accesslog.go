package proxy

import (
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/watchproxy/watchproxy/proxy/exchange"
)

// Answered implements listen.Handler. It counts a request whose answer is about to be written, and logs it if its lot says so. Of the query
// nothing is logged: it may hold what is nobody's business.
func (s *Server) Answered(req *exchange.Request, rt exchange.Route, resp *exchange.Response, took time.Duration) {
	s.metrics.Request(rt, resp, took)
	sampling := s.options.Load().AccessLog
	if sampling == 0 || rand.Float64() >= sampling {
		return
	}
	s.log.Info("request",
		zap.String("verb", rt.Verb), zap.String("path", short(req.Path)), zap.Int("code", resp.Status), zap.String("source", string(resp.Source)),
		zap.Duration("latency", took), zap.String("user", short(req.User())),
		zap.String("userAgent", short(req.Header.Get("User-Agent"))), zap.String("auditID", short(resp.Header.Get("Audit-Id"))))
}

// short is as much of what a client has written as the log repeats.
func short(s string) string {
	const most = 512
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
