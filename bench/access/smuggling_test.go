package access

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// No bytes that a client with few rights, or none, can send make the proxy ask the apiserver as anybody else, show what
// the apiserver would not, or change anything.
func TestSmuggling(t *testing.T) {
	w := newSmuggleWorld(t)
	attempts := smuggleAttempts()
	if len(attempts) < 60 {
		t.Fatalf("only %d attempts", len(attempts))
	}
	w.prove(t)
	began := len(w.audit(t))
	proxied := w.smuggleAll(t, w.proxyAddress, attempts)
	w.checkIdentities(t, began)
	w.checkStanding(t)
	w.prove(t) // it still answers
	direct := w.smuggleAll(t, w.apiAddress, attempts)
	for i, got := range proxied {
		want := direct[i]
		if got.data() > want.data() && !got.attempt.lenient {
			t.Errorf("%v: the apiserver answers %d times with data, the proxy %d times\napiserver: %.600q\nproxy: %.600q",
				got, want.data(), got.data(), want.answers, got.answers)
		}
		if where := bytes.Index(got.answers, []byte(smuggleMarker)); where >= 0 {
			t.Errorf("%v: the proxy shows the secret: %.300q", got, got.answers[max(0, where-100):])
		}
	}
}

// smuggleAttempt is what is written to a connection. The first & stands for the headers that every honest request has.
type smuggleAttempt struct {
	name string
	raw  string
	// lenient tells that the proxy may answer what the apiserver does not: the comment says why.
	lenient bool
}

// smuggled is what became of an attempt.
type smuggled struct {
	attempt smuggleAttempt
	caller  *smuggleCaller
	answers []byte
	codes   []int
}

func (s *smuggled) String() string { return s.caller.name + ": " + s.attempt.name }

// data is how many answers have something to tell.
func (s *smuggled) data() (n int) {
	for _, code := range s.codes {
		if code/100 == 2 {
			n++
		}
	}
	return n
}

// smuggleAll makes every attempt as every caller, some at a time. The outcomes are in the order of the attempts.
func (w *smuggleWorld) smuggleAll(t *testing.T, address string, attempts []smuggleAttempt) []*smuggled {
	t.Helper()
	const atATime = 32
	var all []*smuggled
	for _, attempt := range attempts {
		for _, caller := range w.callers {
			all = append(all, &smuggled{attempt: attempt, caller: caller})
		}
	}
	var running sync.WaitGroup
	places := make(chan struct{}, atATime)
	for i, s := range all {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			if err := w.smuggle(address, s, fmt.Sprint(smuggleAgent, i)); err != nil {
				t.Errorf("%v: %v", s, err)
			}
		})
	}
	running.Wait()
	return all
}

// smuggle writes an attempt and reads what comes back, until the server hangs up or has been silent for a while.
func (w *smuggleWorld) smuggle(address string, s *smuggled, agent string) error {
	conn, err := w.dial(address, s.caller, "http/1.1")
	if err != nil {
		return err
	}
	defer conn.Close()
	honest := "Host: localhost\r\nUser-Agent: " + agent
	if s.caller.token != "" {
		honest += "\r\nAuthorization: Bearer " + s.caller.token
	}
	go io.WriteString(conn, strings.ReplaceAll(s.attempt.raw, "&", honest)) // fails if the server has hung up already
	if s.answers, err = smuggleRead(conn); err != nil {
		return err
	}
	s.codes = smuggleCodes(s.answers)
	return nil
}

func smuggleRead(conn net.Conn) ([]byte, error) {
	const first, silence, all = 4 * time.Second, 500 * time.Millisecond, 8 * time.Second
	var answers []byte
	end, wait := time.Now().Add(all), first
	for {
		deadline := time.Now().Add(wait)
		if deadline.After(end) {
			deadline = end
		}
		if err := conn.SetReadDeadline(deadline); err != nil {
			return answers, nil // it is closed
		}
		buffer := make([]byte, 32<<10)
		n, err := conn.Read(buffer)
		answers = append(answers, buffer[:n]...)
		if err != nil || time.Now().After(end) {
			return answers, nil // an attempt may be left without an answer
		}
		wait = silence
	}
}

// smuggleCodes are the status codes of all answers, broken ones included.
func smuggleCodes(answers []byte) (codes []int) {
	from := bufio.NewReader(bytes.NewReader(answers))
	for {
		resp, err := http.ReadResponse(from, nil)
		if err != nil {
			if rest, _ := io.ReadAll(from); len(rest) > 0 && !errors.Is(err, io.ErrUnexpectedEOF) {
				codes = append(codes, bytes.Count(rest, []byte("HTTP/1.1 2"))*http.StatusOK)
			}
			return codes
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return append(codes, resp.StatusCode)
		}
		if resp.StatusCode >= http.StatusOK {
			codes = append(codes, resp.StatusCode)
		}
	}
}

// checkIdentities holds what the audit log has told since then against who may have asked.
func (w *smuggleWorld) checkIdentities(t *testing.T, began int) {
	t.Helper()
	seen := map[string]int{}
	for _, e := range w.audit(t)[began:] {
		user := e.effective()
		seen[user]++
		if err := w.explains(e); err != nil {
			t.Errorf("%v: as %s: %s %s, agent %q, answer %d", err, user, e.Verb, e.RequestURI, e.UserAgent, e.ResponseStatus.Code)
		}
	}
	for _, user := range []string{"bob", "carol"} {
		if seen[user] == 0 {
			t.Errorf("no attempt has arrived as %s: %v", user, seen)
		}
	}
}

// explains tells why a request may have arrived as the one that it has arrived as.
func (w *smuggleWorld) explains(e smuggleEvent) error {
	attempt := strings.HasPrefix(e.UserAgent, smuggleAgent)
	switch e.effective() {
	case "bob", "carol":
		return nil
	case "":
		if e.ResponseStatus.Code == http.StatusUnauthorized {
			return nil // nobody's: refused, or broken off before it was known whose
		}
	case "admin":
		if e.UserAgent == smuggleAdminAgent {
			return nil
		}
	case smuggleProxyUser:
		own := []string{"list", "watch", "create"} // feeds and reviews
		if strings.HasPrefix(e.UserAgent, "watchproxy") && slices.Contains(own, e.Verb) && !strings.Contains(e.RequestURI, "/secrets") {
			return nil
		}
	default:
		if !attempt && strings.HasPrefix(e.effective(), "system:apiserver") {
			return nil
		}
	}
	return errors.New("a request that nobody may have sent")
}
