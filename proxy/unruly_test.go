package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// manners are what a server does with a request; those behind polite are all that may show.
var manners = map[string]func(c net.Conn, path string) (goOn bool){
	"polite":  func(c net.Conn, path string) bool { return says(c, 200, path) },
	"missing": func(c net.Conn, path string) bool { return says(c, 404, path) },
	"chunks": func(c net.Conn, path string) bool {
		return sends(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", path[:1], len(path)-1, path[1:]))
	},
	"large": func(c net.Conn, path string) bool { return says(c, 200, path+strings.Repeat("x", 100<<10)) },
	"slowly": func(c net.Conn, path string) bool { // and what comes late looks like an answer
		late := "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n?"
		if !sends(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(path+late), path)) {
			return false
		}
		time.Sleep(time.Millisecond)
		return sends(c, late)
	},
	"closes": func(c net.Conn, path string) bool {
		return sends(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(path), path)) && false
	},
	"until the end": func(c net.Conn, path string) bool { return sends(c, "HTTP/1.1 200 OK\r\n\r\n"+path) && false },
	"leaves":        func(c net.Conn, path string) bool { return says(c, 200, path) && false },
	"nothing":       func(net.Conn, string) bool { return false },
	"garbage":       func(c net.Conn, path string) bool { return sends(c, "HTTP/2.0 of course\r\n\r\n"+path) },
	"half a header": func(c net.Conn, _ string) bool { return sends(c, "HTTP/1.1 200 OK\r\nContent-Le") && false },
	"half a body": func(c net.Conn, path string) bool {
		return sends(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(path)+9, path)) && false
	},
	"hints": func(c net.Conn, path string) bool {
		return sends(c, "HTTP/1.1 103 Early Hints\r\n\r\n") && says(c, 200, path)
	},
	"after a pause": func(c net.Conn, path string) bool {
		if !sends(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(path), path[:1])) {
			return false
		}
		time.Sleep(2 * laneSilence)
		return sends(c, path[1:])
	},
	"late": func(c net.Conn, _ string) bool { return says(c, 408, "/the/connection") && false },
	"twice": func(c net.Conn, path string) bool {
		one := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(path), path)
		return sends(c, one+strings.ReplaceAll(one, path, strings.Repeat("?", len(path))))
	},
	"endless header": func(c net.Conn, _ string) bool {
		line := "X: " + strings.Repeat("x", 4<<10) + "\r\n"
		return sends(c, "HTTP/1.1 200 OK\r\n"+strings.Repeat(line, laneHeader/len(line)+10)) && false
	},
}

func says(c net.Conn, status int, body string) bool {
	return sends(c, fmt.Sprintf("HTTP/1.1 %d Whatever\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body))
}

func sends(c net.Conn, text string) bool {
	_, err := io.WriteString(c, text)
	return err == nil
}

// unruly is a server that has its manners from choose.
func unruly(t *testing.T, choose func() string) (l net.Listener, asked *sync.Map) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked = &sync.Map{}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				for in := bufio.NewReader(c); ; {
					_ = c.SetDeadline(time.Now().Add(20 * time.Second))
					req, err := http.ReadRequest(in)
					if err != nil {
						says(c, 400, "what was that") // as net/http does
						return
					}
					manner := choose()
					asked.Store(req.URL.Path, manner)
					if !manners[manner](c, req.URL.Path) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	return l, asked
}
