package access

import (
	"fmt"
	"strings"
)

// These paths lead to forbidden objects. Some of the objects are in the caches, the others only at
// the apiserver.
const (
	smuggleHot  = "/api/v1/namespaces/kube-system/pods?resourceVersion=0"
	smuggleCold = "/api/v1/namespaces/default/secrets"
)

// smuggleLines replaces newlines by HTTP's line ends.
func smuggleLines(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }

// smuggleAttempts returns all attempts over HTTP/1.1.
func smuggleAttempts() (all []smuggleAttempt) {
	for _, target := range []string{smuggleHot, smuggleCold} {
		for _, header := range smuggleHeaders {
			all = append(all, smuggleAttempt{
				name: fmt.Sprintf("%q, %s", header, target),
				raw:  smuggleLines("GET " + target + " HTTP/1.1\n&\n" + header + "\n\n"),
			}, smuggleAttempt{
				name: fmt.Sprintf("%q first, %s", header, target),
				raw:  smuggleLines("GET " + target + " HTTP/1.1\n" + header + "\n&\n\n"),
			})
		}
	}
	for _, target := range smuggleTargets {
		all = append(all, smuggleAttempt{name: target, raw: smuggleLines("GET " + target + " HTTP/1.1\n&\n\n")})
	}
	for _, line := range smuggleRequestLines {
		all = append(all, smuggleAttempt{name: line, raw: smuggleLines(line + "\n&\nContent-Length: 0\n\n")})
	}
	for _, line := range []string{
		"POST /api/v1/namespaces/default/configmaps HTTP/1.1",
		"POST /version HTTP/1.1\nHost: evil.example",
		"GET " + smuggleCached + " HTTP/1.1",
		"POST /api/v1/namespaces/default/pods/precious/exec HTTP/1.1\nConnection: Upgrade\nUpgrade: SPDY/3.1",
	} {
		for _, framing := range smuggleFramings {
			all = append(all, smuggleAttempt{
				name: fmt.Sprintf("%.40q %.60q", line, framing),
				raw:  smuggleLines(line + "\n&\n" + framing + smuggleHidden()),
			})
		}
	}
	return append(all, smuggleBytes()...)
}

// smuggleHidden returns requests that a server must either ignore or treat as requests of the
// caller. The owner of a certificate gets data for the second one, unless it is ignored.
func smuggleHidden() string {
	return "DELETE /api/v1/namespaces/kube-system/configmaps/precious HTTP/1.1\nHost: localhost\nUser-Agent: " + smuggleAgent +
		"hidden\n\nGET " + smuggleCached + " HTTP/1.1\nHost: localhost\nUser-Agent: " + smuggleAgent + "hidden\n\nGET " + smuggleHot + " HTTP/1.1\nHost: localhost\nUser-Agent: " + smuggleAgent + "hidden\nConnection: close\n\n"
}

// smuggleHeaders are headers that try to act as another user.
var smuggleHeaders = []string{
	"Impersonate-User: admin\nImpersonate-Group: system:masters",
	"impersonate-user: admin\nIMPERSONATE-GROUP: system:masters",
	"iMpErSoNaTe-UsEr: " + masterProxy,
	"Impersonate-User: bob\nImpersonate-User: admin\nImpersonate-Group: system:masters",
	"Impersonate-User:\nImpersonate-Group: system:masters",
	"Impersonate-Group: system:masters",
	"Impersonate-Uid: admin",
	"Impersonate-Extra-Scopes: all",
	"Impersonate-Extra-%53copes: all\nImpersonate-User: admin",
	"Impersonate-User: \t admin \t ",
	"Impersonate_User: admin\nImpersonate_Group: system:masters",
	"Impersonate-User : admin",
	"Impersonate-User\t: admin",
	"X-Y: z\n Impersonate-User: admin",
	"X-Y: z\n\tImpersonate-Group: system:masters",
	"Connection: Impersonate-User, Authorization",
	"Connection: Impersonate-User, Impersonate-Group\nImpersonate-User: carol\nImpersonate-Group: crew",
	"Connection: close, authorization",
	"Connection: keep-alive, AUTHORIZATION, Sec-WebSocket-Protocol",
	"Connection: Host, Content-Length, User-Agent, Impersonate-User\nImpersonate-User: bob",
	"X-Remote-User: admin\nX-Remote-Group: system:masters",
	"x-remote-user: admin\nx-remote-group: system:masters\nx-remote-extra-scopes: all",
	"X_Remote_User: admin\nX-REMOTE-GROUP: system:masters",
	"X-Remote-Uid: admin\nX-Remote-User: " + masterProxy,
	"X-Forwarded-User: admin\nX-Forwarded-Groups: system:masters\nX-Forwarded-For: 127.0.0.1",
	"Authorization: Bearer garbage",
	"Authorization: Bearer " + masterProxy + "-token-not",
	"Authorization: Basic YWRtaW46YWRtaW4=",
	"authorization: bearer\tgarbage",
	"Authorization:",
	"Proxy-Authorization: Bearer garbage",
	"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.Z2FyYmFnZQ, v4.channel.k8s.io",
	"Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.Z2FyYmFnZQ",
	"Connection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAMAAABkAAQAAP__",
	"X-HTTP-Method-Override: DELETE\nX-Original-URL: " + smuggleCold + "\nX-Rewrite-URL: " + smuggleCold,
	"\xc3\x9cser: admin",
	"Impersonate-User\xc3\xa9: admin",
	"Impersonate-User: adm\x00in",
	"Impersonate-User: admin\rImpersonate-Group: system:masters",
	"Host: localhost",
	"Cookie: token=garbage\nCookie: user=admin",
	"Trailer: Impersonate-User\nTE: trailers",
	"Range: bytes=0-1000000\nIf-None-Match: *",
}

// smuggleTargets are paths to forbidden objects.
var smuggleTargets = []string{
	smuggleHot,
	smuggleCold,
	"/api/v1/namespaces/default/../kube-system/pods?resourceVersion=0",
	"/api/v1/namespaces/default/configmaps/../../kube-system/pods?resourceVersion=0",
	"/api/v1/namespaces/default/./pods?resourceVersion=0",
	"/api/v1/namespaces/default/%2e%2e/kube-system/pods?resourceVersion=0",
	"/api/v1/namespaces/%2e%2e/pods?resourceVersion=0",
	"/api/v1/namespaces/default%2f..%2fkube-system/pods?resourceVersion=0",
	"/api/v1/namespaces/default%2fconfigmaps/pods?resourceVersion=0",
	"/api/v1/namespaces/default/configmaps%2f..%2fpods?resourceVersion=0",
	"/api/v1/namespaces/default/configmaps%00/pods?resourceVersion=0",
	"/api/v1/namespaces/default/pod%73?resourceVersion=0",
	"/api/v1/namespaces/kube%2dsystem/configmaps?resourceVersion=0",
	"//api/v1/namespaces/kube-system/pods?resourceVersion=0",
	"/api//v1/namespaces/kube-system/pods?resourceVersion=0",
	"/api/v1/namespaces//pods?resourceVersion=0",
	"/api/v1/namespaces/default//pods?resourceVersion=0",
	"/api/v1/namespaces/default/configmaps//?resourceVersion=0",
	"/api/v1/namespaces/kube-system/pods/?resourceVersion=0",
	"/api/v1/namespaces/kube-system/pods/precious/?resourceVersion=0",
	"/api/v1/namespaces/kube-system/pods/precious?resourceVersion=0&watch=1",
	"/api/v1/namespaces/kube-system/pods;x=y?resourceVersion=0",
	"/api/v1/namespaces/default;/../kube-system/pods?resourceVersion=0",
	"/api/v1/namespaces/kube-system/pods#/api/v1/namespaces/default/configmaps",
	"/api/v1/namespaces/default/configmaps?resourceVersion=0#/../../kube-system/pods",
	"/api/v1/namespaces/default\\..\\kube-system\\pods?resourceVersion=0",
	"\\api\\v1\\namespaces\\kube-system\\pods",
	"/api/v1/namespaces/default/configmaps%3fresourceVersion=0",
	"/api/v1/namespaces/kube-system/pods%3fresourceVersion=0",
	"/api/v1/namespaces/kube-system/PODS?resourceVersion=0",
	"/API/V1/namespaces/kube-system/pods?resourceVersion=0",
	"/api/v1/Namespaces/kube-system/Pods?resourceVersion=0",
	"/api/v1/configmaps?resourceVersion=0",
	"/api/v1/configmaps?resourceVersion=0&fieldSelector=metadata.namespace%3Ddefault&fieldSelector=metadata.namespace%3Dkube-system",
	"/api/v1/pods?fieldSelector=metadata.namespace%3Dkube-system&resourceVersion=0",
	"/api/v1/namespaces/kube-system/configmaps?resourceVersion=0&namespace=default",
	"/api/v1/namespaces/default/configmaps?resourceVersion=0&watch=1&timeoutSeconds=1",
	"/api/v1/namespaces/default/configmaps?resourceVersion=0&watch=0&watch=1&timeoutSeconds=1",
	"/api/v1/namespaces/default/configmaps/precious?resourceVersion=0",
	"/api/v1/namespaces/default/configmaps?resourceVersion=0&resourceVersion=1&limit=1;watch=1",
	"/api/v1/watch/namespaces/kube-system/pods?resourceVersion=0&timeoutSeconds=1",
	"/api/v1/watch/namespaces/default/configmaps?resourceVersion=0&timeoutSeconds=1",
	"/api/v1/namespaces/default/namespaces/kube-system/pods?resourceVersion=0",
	"/api/v1/namespaces/kube-system?resourceVersion=0",
	"/api/v1/namespaces/kube-system/pods/precious/log?resourceVersion=0",
	"/api/v1/namespaces/default/configmaps/precious/../../../kube-system/secrets/precious",
	"/api/v1/namespaces/default/services/x/proxy/../../../../kube-system/secrets",
	"/api/v1/proxy/namespaces/default/services/x/../../secrets",
	"/apis/../api/v1/secrets",
	"/apis//v1/namespaces/kube-system/pods?resourceVersion=0",
	"/apis/%20/v1/namespaces/kube-system/pods?resourceVersion=0",
	"/apis/apps/v1/../../../api/v1/pods",
	"/openapi/../api/v1/secrets",
	"/metrics",
	"/%61pi/v1/namespaces/kube-system/pods?resourceVersion=0",
	"/api/v1/%73ecrets",
	"/api/v1/namespaces/default/configmaps%20?resourceVersion=0",
	"/api/v1/namespaces/\xff/pods?resourceVersion=0",
	"/api/v1/pods\xff?resourceVersion=0",
	"?resourceVersion=0",
	"api/v1/pods?resourceVersion=0",
	"http://localhost/api/v1/pods?resourceVersion=0",
	"http://evil.example/api/v1/pods?resourceVersion=0",
	"https://admin:x@localhost/api/v1/secrets",
	"*",
}

// smuggleRequestLines are unusual request lines.
var smuggleRequestLines = []string{
	"CONNECT localhost:443 HTTP/1.1",
	"CONNECT " + smuggleHot + " HTTP/1.1",
	"OPTIONS * HTTP/1.1",
	"OPTIONS " + smuggleHot + " HTTP/1.1",
	"TRACE " + smuggleCold + " HTTP/1.1",
	"get " + smuggleHot + " HTTP/1.1",
	"Get " + smuggleCold + " HTTP/1.1",
	"HEAD " + smuggleHot + " HTTP/1.1",
	"WATCH " + smuggleHot + " HTTP/1.1",
	"PRI * HTTP/2.0",
	"GET " + smuggleHot,
	"GET " + smuggleHot + " HTTP/0.9",
	"GET " + smuggleHot + " HTTP/1.0",
	"GET " + smuggleHot + " HTTP/2.0",
	"GET " + smuggleHot + " http/1.1",
	"GET  " + smuggleHot + " HTTP/1.1",
	"GET\t" + smuggleHot + "\tHTTP/1.1",
	" GET " + smuggleHot + " HTTP/1.1",
	"GET " + smuggleHot + "  HTTP/1.1",
	"DELETE /api/v1/namespaces/kube-system/configmaps/precious HTTP/1.1",
	"DELETE /api/v1/namespaces/default/configmaps/precious HTTP/1.1",
	"DELETE /api/v1/namespaces/default/configmaps/../../kube-system/configmaps/precious HTTP/1.1",
	"DELETE /api/v1/namespaces/default/configmaps HTTP/1.1",
	"DELETE http://localhost/api/v1/namespaces/default/configmaps HTTP/1.1",
}

// smuggleFramings are put between the headers of a request and hidden requests. If the proxy
// answers before it has read the whole body, it must not take the rest of the body for requests.
var smuggleFramings = []string{
	"Content-Length: 0\n\n",
	"Content-Length: 4\n\n{}\n",
	"Content-Length: 0\nContent-Length: 400\n\n",
	"Content-Length: 400\nContent-Length: 0\n\n",
	"Content-Length: 0, 0\n\n",
	"Content-Length: +0\n\n",
	"Content-Length: -1\n\n",
	"Content-Length: 0x0\n\n",
	"Content-Length:\n\n",
	"Content-Length: 0\x00\n\n",
	"Content-Length: 99999999999999999999\n\n",
	"Content-Length : 0\n\n",
	"Content_Length: 400\n\n",
	"Transfer-Encoding: chunked\n\n0\n\n",
	"Transfer-Encoding: chunked\n\n", // the hidden requests are no chunks
	"Transfer-Encoding: chunked\nContent-Length: 5\n\n0\n\n",
	"Content-Length: 5\nTransfer-Encoding: chunked\n\n0\n\n",
	"Transfer-Encoding: chunked\nTransfer-Encoding: identity\n\n0\n\n",
	"Transfer-Encoding: identity\nContent-Length: 0\n\n",
	"Transfer-Encoding: xchunked\n\n0\n\n",
	"Transfer-Encoding: chunked, chunked\n\n0\n\n",
	"Transfer-Encoding: gzip, chunked\n\n0\n\n",
	"Transfer-Encoding : chunked\n\n0\n\n",
	"Transfer-Encoding:\x0bchunked\n\n0\n\n",
	"X: y\n Transfer-Encoding: chunked\nContent-Length: 0\n\n",
	"Transfer-Encoding: chunked\n\n0;a=\"b\"\n\n",
	"Transfer-Encoding: chunked\n\n0\nImpersonate-User: admin\nAuthorization: Bearer garbage\n\n",
	"Transfer-Encoding: chunked\n\n-1\n\n",
	"Transfer-Encoding: chunked\n\n0x0\n\n",
	"Transfer-Encoding: chunked\n\nfffffffffffffffff\n\n",
	"Transfer-Encoding: chunked\n\n00000000000000000\n\n",
	"Expect: 100-continue\nContent-Length: 0\n\n",
	"Expect: 100-continue\nContent-Length: 200\n\n",
	"Connection: close, x\nContent-Length: 0\n\n",
	"Connection: close\nConnection: keep-alive\nContent-Length: 0\n\n",
	"Connection: Content-Length\nContent-Length: 0\n\n",
	"Connection: Transfer-Encoding\nTransfer-Encoding: chunked\n\n0\n\n",
	"Connection: Upgrade\nUpgrade: websocket\nContent-Length: 0\n\n",
}

// smuggleBytes are attempts whose lines have wrong ends.
func smuggleBytes() []smuggleAttempt {
	hidden := smuggleLines(smuggleHidden())
	return []smuggleAttempt{
		{name: "bare LF", raw: "GET " + smuggleHot + " HTTP/1.1\n&\n\n"},
		{name: "LF before the end", raw: "GET " + smuggleHot + " HTTP/1.1\r\n&\n\r\nImpersonate-User: admin\r\n\r\n"},
		{name: "bare CR", raw: "GET " + smuggleHot + " HTTP/1.1\r&\r\r"},
		{name: "CR in a value", raw: "GET " + smuggleHot + " HTTP/1.1\r\n&\r\nX: y\rImpersonate-User: admin\r\n\r\n"},
		{name: "chunks end in LF", raw: "POST /version HTTP/1.1\r\n&\r\nTransfer-Encoding: chunked\r\n\r\n0\n\n" + hidden},
		{name: "chunk longer than told", raw: "POST /version HTTP/1.1\r\n&\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n" + hidden},
		{name: "folded encoding", raw: "POST /version HTTP/1.1\r\n&\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + hidden},
		{name: "headers only", raw: "Host: localhost\r\nImpersonate-User: admin\r\n\r\n"},
		{name: "no headers", raw: "GET " + smuggleHot + " HTTP/1.0\r\n\r\n"},
		{name: "a long header", raw: "GET " + smuggleHot + " HTTP/1.1\r\n&\r\nX: " + strings.Repeat("y", 70<<10) + "\r\nImpersonate-User: admin\r\n\r\n"},
		{name: "a hundred options", raw: "GET " + smuggleHot + " HTTP/1.1\r\n&\r\nConnection: " + strings.Repeat("authorization,", 100) + "\r\n\r\n"},
		{name: "another caller behind", raw: "GET " + smuggleCached + " HTTP/1.1\r\n&\r\n\r\n" + hidden},
		{name: "another caller before", raw: "GET " + smuggleCached + " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer garbage\r\n\r\nGET " + smuggleHot + " HTTP/1.1\r\n&\r\n\r\n"},
		// A server may skip empty lines (RFC 9112, 2.2). The proxy does, and the apiserver does
		// not.
		{name: "empty lines before", raw: "\r\n\r\nGET " + smuggleCached + " HTTP/1.1\r\n&\r\n\r\n", lenient: true},
		{name: "empty lines between", raw: "GET " + smuggleCached + " HTTP/1.1\r\n&\r\n\r\n\r\n\r\n" + hidden, lenient: true},
	}
}
