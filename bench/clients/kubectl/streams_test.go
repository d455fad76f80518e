package kubectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/watchproxy/watchproxy/bench/cluster"
)

// session is an upgraded connection on which the other side opens streams.
type session struct {
	conn    httpstream.Connection
	streams chan httpstream.Stream
	running sync.WaitGroup  // goroutines other than the handler
	ctx     context.Context // ends with the connection
	cancel  context.CancelFunc
}

// upgrade accepts a request for SPDY. If it fails, it sends the client an error and returns nil.
func (k *kubelet) upgrade(w http.ResponseWriter, r *http.Request, protocols ...string) *session {
	if _, err := httpstream.Handshake(r, w, protocols); err != nil {
		return nil
	}
	const streamsMax = 1000
	s := &session{streams: make(chan httpstream.Stream, streamsMax)}
	s.conn = spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		s.streams <- stream
		return nil
	})
	if s.conn == nil {
		return nil
	}
	k.open.Add(1)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.running.Go(func() {
		defer k.open.Add(-1)
		<-s.conn.CloseChan()
		s.cancel()
	})
	return s
}

// leave gives the client time to close the connection first, after it has read all data. It waits
// for the session's goroutines.
func (s *session) leave() {
	select {
	case <-s.ctx.Done():
	case <-time.After(cluster.Limit):
	}
	s.conn.Close()
	s.running.Wait()
}

// take waits for the streams of a command, and returns them by type.
func (s *session) take(types ...string) (map[string]httpstream.Stream, error) {
	got := map[string]httpstream.Stream{}
	for range types {
		select {
		case stream := <-s.streams:
			got[stream.Headers().Get(corev1.StreamType)] = stream
		case <-s.ctx.Done():
			return nil, errors.New("hung up")
		case <-time.After(cluster.Limit):
			return nil, errors.New("streams are missing")
		}
	}
	for _, t := range types {
		if got[t] == nil {
			return nil, fmt.Errorf("no stream %s", t)
		}
	}
	return got, nil
}

// exec runs the requested command.
func (k *kubelet) exec(w http.ResponseWriter, r *http.Request) {
	command := r.URL.Query()["command"]
	k.run(w, r, func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, command[0], command[1:]...) })
}

// attach attaches to a process in the pod that prints hello and echoes its input.
func (k *kubelet) attach(w http.ResponseWriter, r *http.Request) {
	k.run(w, r, func(ctx context.Context) *exec.Cmd {
		return exec.CommandContext(ctx, "sh", "-c", "echo hello; exec cat")
	})
}

// run connects a process to the streams that the client opens.
func (k *kubelet) run(w http.ResponseWriter, r *http.Request, command func(context.Context) *exec.Cmd) {
	types := []string{corev1.StreamTypeError}
	for param, stream := range map[string]string{
		corev1.ExecStdinParam:  corev1.StreamTypeStdin,
		corev1.ExecStdoutParam: corev1.StreamTypeStdout,
		corev1.ExecStderrParam: corev1.StreamTypeStderr,
	} {
		if r.FormValue(param) == "1" {
			types = append(types, stream)
		}
	}
	s := k.upgrade(w, r, remotecommand.StreamProtocolV4Name)
	if s == nil {
		return
	}
	defer s.leave()
	streams, err := s.take(types...)
	if err != nil {
		return
	}
	cmd := command(s.ctx)
	if out := streams[corev1.StreamTypeStdout]; out != nil {
		cmd.Stdout = out
	}
	if out := streams[corev1.StreamTypeStderr]; out != nil {
		cmd.Stderr = out
	}
	err = s.runWith(cmd, streams[corev1.StreamTypeStdin])
	json.NewEncoder(streams[corev1.StreamTypeError]).Encode(exitStatus(err))
	for _, stream := range streams {
		stream.Close()
	}
}

// runWith runs a process. The process may end before its standard input ends.
func (s *session) runWith(cmd *exec.Cmd, stdin io.Reader) error {
	if stdin == nil {
		return cmd.Run()
	}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.running.Go(func() {
		defer pipe.Close()
		io.Copy(pipe, stdin)
	})
	return cmd.Wait()
}

// exitStatus returns the exit status of a process in the format of protocol v4.
func exitStatus(err error) metav1.Status {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return metav1.Status{Status: metav1.StatusSuccess}
	case errors.As(err, &exit):
		code := strconv.Itoa(exit.ExitCode())
		return metav1.Status{
			Status:  metav1.StatusFailure,
			Reason:  remotecommand.NonZeroExitCodeReason,
			Message: "command terminated with non-zero exit code: " + code,
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: code}}},
		}
	}
	return metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Message: err.Error()}
}
