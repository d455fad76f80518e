package hostile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// descriptors are clients with more connections than a proxy has descriptors.
func descriptors() []behaviour {
	return []behaviour{
		{
			name: fmt.Sprintf("more connections than the %d descriptors that there are", fewDescriptors), clients: 1000, most: 18_000, rate: 2000, on: few, least: 3 * fewDescriptors,
			do: says(""), beside: watchOn, after: answers,
		},
		{
			name: fmt.Sprintf("requests beyond the %d descriptors, again and again", fewDescriptors), clients: 400, most: 2000, rate: 1000, on: few, least: 3 * fewDescriptors,
			do: func(a *attack, _ int) {
				for a.turn() {
					if conn, err := a.dial(); err == nil {
						_ = a.write(conn, a.request(http.MethodGet, oneRow, nil))
						cluster.Pause(a.ctx, 500*time.Millisecond)
						conn.Close()
					}
				}
			},
			beside: watchOn, after: answers,
		},
	}
}

// watchOn keeps a watch that was open before the attack. The watch must stay open.
func watchOn(a *attack, ready func()) {
	if err := a.holdWatch(ready); err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.mu.bad[fmt.Sprintf("the watch from before: %v", err)]++
	}
}

// holdWatch reads the victim's writes during the row, and one more write after the row.
func (a *attack) holdWatch(ready func()) error {
	defer ready()
	conn, err := net.Dial("tcp", a.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.WriteString(conn, a.request(http.MethodGet, counterPath+"?watch=true&resourceVersion=0&timeoutSeconds=600", nil))
	if err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	for lines := bufio.NewReader(resp.Body); ; {
		if err := conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
			return err
		}
		line, err := lines.ReadString('\n')
		switch {
		case err != nil:
			return err
		case a.ctx.Err() != nil:
			return nil
		case !strings.Contains(line, counterName):
			return fmt.Errorf("it shows %.100q", line)
		}
		ready()
	}
}

// answers checks that the proxy responds again after the attackers have left.
func answers(a *attack) error {
	for {
		if _, _, resp := a.asks(http.MethodGet, oneRow, nil); resp != nil && resp.StatusCode == http.StatusOK {
			return nil
		}
		if a.ctx.Err() != nil || !a.alive() {
			return errors.New("the proxy does not answer any more")
		}
		cluster.Pause(a.ctx, 50*time.Millisecond)
	}
}
