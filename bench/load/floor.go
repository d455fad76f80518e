package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/net/http2"
	"k8s.io/client-go/tools/clientcmd"
)

// newFloorCommand returns a program that does only the necessary work, with Go's standard library:
// it sends prepared responses, writes prepared frames to all watches, and forwards everything else.
// It has the flags of watchproxy serve, so that the bench starts it like a proxy. The admin address
// takes the watches, and the floor announces it as https.
func newFloorCommand() *cobra.Command {
	f := &theFloor{responses: map[string]prepared{}}
	var listen, admin, kubeconfig, certificate, key string
	cmd := &cobra.Command{Use: "serve", Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			return err
		}
		if err := f.forwardTo(kubeconfig); err != nil {
			return err
		}
		config := &tls.Config{
			Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
		}
		requests, err := net.Listen("tcp", listen)
		if err != nil {
			return err
		}
		watches, err := tls.Listen("tcp", admin, config)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stdout, "watchproxy ready: https://%s (admin https://%s)\n", requests.Addr(), watches.Addr())
		go f.watches(watches)
		return (&http.Server{Handler: f, TLSConfig: config, ReadHeaderTimeout: time.Minute}).ServeTLS(requests, "", "")
	}}
	flags := cmd.Flags()
	flags.StringVar(&listen, "listen", "", "")
	flags.StringVar(&admin, "admin-listen", "", "")
	flags.StringVar(&kubeconfig, "kubeconfig", "", "")
	flags.StringVar(&certificate, "tls-cert-file", "", "")
	flags.StringVar(&key, "tls-private-key-file", "", "")
	return cmd
}

type theFloor struct {
	forward *httputil.ReverseProxy

	mu        sync.Mutex
	responses map[string]prepared
	open      []stream // copied when a watch leaves
}

// prepared is a response.
type prepared struct {
	encoding string
	body     []byte
}

// forwardTo makes the floor forward to the server of a kubeconfig.
func (f *theFloor) forwardTo(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		return err
	}
	ca := config.CAData
	if ca == nil {
		if ca, err = os.ReadFile(config.CAFile); err != nil {
			return err
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	f.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13},
			ForceAttemptHTTP2: true, DisableCompression: true,
		},
	}
	return nil
}

// eventPath is the path that a frame is posted to.
const eventPath = "/event"

// ServeHTTP implements http.Handler. PUT prepares a response to the same request with GET: the body
// has the encoding, a line feed, and the response.
func (f *theFloor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.RequestURI + r.Header.Get("Accept") + r.Header.Get("Accept-Encoding")
	f.mu.Lock()
	answer, known := f.responses[key]
	f.mu.Unlock()
	switch {
	case r.Method == http.MethodGet && known:
		if answer.encoding != "" {
			w.Header().Set("Content-Encoding", answer.encoding)
		}
		_, _ = w.Write(answer.body)
	case r.Method == http.MethodPut:
		body, _ := io.ReadAll(r.Body)
		encoding, body, _ := bytes.Cut(body, []byte("\n"))
		f.mu.Lock()
		f.responses[key] = prepared{string(encoding), body}
		f.mu.Unlock()
	case r.URL.Path == eventPath:
		event, _ := io.ReadAll(r.Body)
		f.deliver(event)
	default:
		f.forward.ServeHTTP(w, r)
	}
}

// deliver writes an event to all watches, on two processors.
func (f *theFloor) deliver(event []byte) {
	f.mu.Lock()
	all := f.open
	f.mu.Unlock()
	chunk := append(fmt.Appendf(nil, "%x\r\n%s", len(event), event), "\r\n"...)
	var halves sync.WaitGroup
	for _, half := range [][]stream{all[:len(all)/2], all[len(all)/2:]} {
		halves.Go(func() {
			for _, s := range half {
				s.write(event, chunk)
			}
		})
	}
	halves.Wait()
}

// watches treats each request on a connection as a watch.
func (f *theFloor) watches(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close() //nolint:errcheck // the client has left
			c := conn.(*tls.Conn)
			if c.Handshake() != nil {
				return
			}
			watch := f.watch1
			if c.ConnectionState().NegotiatedProtocol == http2.NextProtoTLS {
				watch = f.watch2
			}
			_ = watch(c)
			f.mu.Lock()
			defer f.mu.Unlock()
			f.open = slices.DeleteFunc(slices.Clone(f.open), func(s stream) bool { return s.Conn == conn })
		}()
	}
}

func (f *theFloor) watch1(c *tls.Conn) error {
	from := bufio.NewReader(c)
	if _, err := http.ReadRequest(from); err != nil {
		return err
	}
	_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
	f.add(stream{c, 0})
	_, readErr := io.Copy(io.Discard, from)
	return errors.Join(err, readErr)
}

// watch2 reads what the client sends, but ignores its windows.
func (f *theFloor) watch2(c *tls.Conn) error {
	from := bufio.NewReader(c)
	if _, err := from.Discard(len(http2.ClientPreface)); err != nil {
		return err
	}
	framer := http2.NewFramer(c, from)
	if err := framer.WriteSettings(); err != nil {
		return err
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return err
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				err = framer.WriteSettingsAck()
			}
		case *http2.HeadersFrame:
			const ok = "\x88" // :status 200, from HPACK's static table
			err = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: frame.StreamID, BlockFragment: []byte(ok), EndHeaders: true})
			f.add(stream{c, frame.StreamID})
		case *http2.PingFrame:
			if !frame.IsAck() {
				err = framer.WritePing(true, frame.Data)
			}
		}
		if err != nil {
			return err
		}
	}
}

func (f *theFloor) add(s stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open = append(slices.Clip(f.open), s)
}

// stream is a watch: a connection, or an HTTP/2 stream of a connection.
type stream struct {
	net.Conn
	id uint32 // 0 for HTTP/1.1
}

// write writes an event: as a chunk, or in a DATA frame. Clients that have left do not matter.
func (s stream) write(event, chunk []byte) {
	if s.id != 0 {
		n := len(event)
		chunk = append(binary.BigEndian.AppendUint32([]byte{byte(n >> 16), byte(n >> 8), byte(n), 0, 0}, s.id), event...)
	}
	_, _ = s.Write(chunk)
}
