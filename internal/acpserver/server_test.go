package acpserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestMain(m *testing.M) { testleak.Main(m) }

// patience bounds how long a server may hang. A flood takes a busy machine more than a minute
// with the race detector.
const patience = 5 * time.Minute

// wire is the editor's end of a connection, line by line.
type wire struct {
	t      *testing.T
	in     *io.PipeWriter
	lines  *bufio.Reader
	served chan error
	cancel context.CancelFunc
}

type reply struct {
	ID     json.RawMessage
	Result struct {
		SessionID  string
		StopReason acp.StopReason
	}
	Error *acp.RequestError
}

// serve serves sessions that create their sandboxes with create.
func serve(t *testing.T, create func(context.Context) error) *wire {
	t.Helper()
	return serveSessions(t, session.Config{
		Environment: environment.Config{Agent: environment.Agent{Name: "script"}},
		Create: func(ctx context.Context, _ environment.Config) (*environment.Environment, error) {
			return nil, create(ctx)
		},
	})
}

// serveSessions serves sessions with one configuration, in a store of their own.
func serveSessions(t *testing.T, of session.Config) *wire {
	t.Helper()
	return serveStored(t, store.NewMemory(), of)
}

func serveStored(t *testing.T, st store.Store, of session.Config) *wire {
	t.Helper()
	host, err := session.NewHost(session.HostConfig{Store: st, Session: session.Config{
		Create: of.Create, Environment: environment.Config{OnPermission: environment.AnswerLater},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, Config{Name: "test", Host: host, EndHost: true, Configure: func(context.Context, Request) (session.Config, error) { return of, nil }})
}

// connect serves a connection.
func connect(t *testing.T, cfg Config) *wire {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	in, feed := io.Pipe()
	out, drain := io.Pipe()
	w := &wire{t: t, in: feed, lines: bufio.NewReader(out), served: make(chan error, 1), cancel: cancel}
	var serving sync.WaitGroup
	serving.Go(func() {
		err := Serve(ctx, cfg, Lines(in, drain))
		_ = drain.Close() // always nil
		w.served <- err
	})
	t.Cleanup(func() {
		cancel()
		_, _ = feed.Close(), out.Close() // always nil
		serving.Wait()
	})
	return w
}

// send sends lines at once.
func (w *wire) send(lines ...string) {
	w.t.Helper()
	if _, err := io.WriteString(w.in, strings.Join(lines, "\n")+"\n"); err != nil {
		w.t.Fatal(err)
	}
}

// next returns the next reply.
func (w *wire) next() (r reply) {
	w.t.Helper()
	line, err := w.lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	if err != nil {
		w.t.Fatalf("%v: %s", err, line)
	}
	return r
}

func (w *wire) begin() string {
	w.t.Helper()
	w.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":"new","method":"session/new","params":{"cwd":%q,"mcpServers":[]}}`, w.t.TempDir()))
	r := w.next()
	if r.Error != nil {
		w.t.Fatal(r.Error)
	}
	return r.Result.SessionID
}

func promptLine(id, sessionID string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"session/prompt","params":{"sessionId":%q,"prompt":[{"type":"text","text":"go"}]}}`, id, sessionID)
}

func untilDone(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func TestACancellationRightAfterThePromptCancelsIt(t *testing.T) {
	w := serve(t, untilDone)
	id := w.begin()
	for i := range 50 {
		cancel := fmt.Sprintf(`{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":%q}}`, id)
		if i%2 == 1 {
			cancel = fmt.Sprintf(`{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":%d}}`, i)
		}
		w.send(promptLine(fmt.Sprint(i), id), cancel)
		r := w.next()
		withdrawn := r.Error != nil && r.Error.Code == codeCancelled
		if string(r.ID) != fmt.Sprint(i) || withdrawn != (i%2 == 1) || (r.Result.StopReason == acp.StopReasonCancelled) == withdrawn {
			t.Fatalf("prompt %d: %+v, %v", i, r, r.Error)
		}
	}
}

func TestASecondPromptIsRefusedWhileTheFirstIsWorkedOn(t *testing.T) {
	w := serve(t, untilDone)
	id := w.begin()
	w.send(promptLine("1", id), promptLine("2", id))
	if r := w.next(); string(r.ID) != "2" || r.Error == nil || r.Error.Code != codeInvalidRequest {
		t.Errorf("%+v", r)
	}
	w.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":%q}}`, id))
	if r := w.next(); string(r.ID) != "1" || r.Result.StopReason != acp.StopReasonCancelled {
		t.Errorf("%+v", r)
	}
}

func TestAMessageThatIsNoRequestDoesNotEndTheConnection(t *testing.T) {
	w := serve(t, func(context.Context) error { return errors.New("no sandbox today") })
	for _, c := range []struct {
		line string
		code int // zero: no reply
	}{
		{`{`, codeParse},
		{`[]`, codeParse},
		{`"x"`, codeParse},
		{`{}`, 0},
		{`{"id":7,"result":{}}`, 0}, // the answer to no request
		{`{"method":"session/cancel"}`, 0},
		{`{"method":"session/cancel","params":{"sessionId":"none"}}`, 0},
		{`{"method":"$/cancel_request","params":7}`, 0},
		{`{"method":"$/cancel_request","params":{"requestId":"none"}}`, 0},
		{`{"method":"session/forget","params":{}}`, 0},
		{`{"id":1,"method":"session/forget"}`, codeNoMethod},
		{`{"id":1,"method":"session/new"}`, codeInvalidParams},
		{`{"id":1,"method":"session/new","params":{"cwd":7}}`, codeInvalidParams},
		{`{"id":1,"method":"session/new","params":{"cwd":"/","mcpServers":[{"name":"a","command":["x"]}]}}`, codeInvalidParams},
		{`{"id":1,"method":"session/new","params":{"cwd":"/","mcpServers":[],"additionalDirectories":["/tmp"]}}`, codeInvalidParams},
		{`{"id":1,"method":"session/prompt","params":{"sessionId":"none","prompt":"text"}}`, codeInvalidParams},
		{`{"id":1,"method":"session/prompt","params":{"sessionId":"none","prompt":[]}}`, codeNotFound},
		{`{"id":1,"method":"session/close","params":{"sessionId":"none"}}`, codeNotFound},
		{`{"id":1,"method":"initialize","params":[]}`, codeInvalidParams},
	} {
		w.send(c.line)
		if c.code == 0 {
			continue
		}
		if r := w.next(); r.Error == nil || r.Error.Code != c.code {
			t.Errorf("%s: %+v, %v", c.line, r, r.Error)
		}
	}
	id := w.begin()
	w.send(promptLine("8", id))
	if r := w.next(); r.Error == nil || r.Error.Code != codeInternal || !strings.Contains(r.Error.Message, "no sandbox today") {
		t.Errorf("%+v", r)
	}
	_ = w.in.Close() // always nil
	if err := <-w.served; err != nil {
		t.Errorf("it ends with %v", err)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	made := make(chan struct{})
	w := serve(t, func(ctx context.Context) error { close(made); return untilDone(ctx) })
	w.send(promptLine("1", w.begin()))
	<-made
	w.cancel()
	if r := w.next(); r.Result.StopReason != acp.StopReasonCancelled {
		t.Errorf("%+v, %v", r, r.Error)
	}
	if err := <-w.served; !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
}

func TestServeEndsWhenTheEditorDoesNotRead(t *testing.T) {
	in, feed := io.Pipe()
	out, drain := io.Pipe()
	_ = out.Close() // always nil
	served := make(chan error, 1)
	go func() { served <- Serve(t.Context(), Config{}, Lines(in, drain)) }()
	if _, err := io.WriteString(feed, "{\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-served; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("it ends with %v", err)
	}
	_ = feed.Close() // always nil
}

func TestAnAnswerThatIsTooLongEndsTheConnection(t *testing.T) {
	w := serve(t, untilDone)
	w.send(`{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("x", maxAnswer) + `"}`)
	if err := <-w.served; err == nil || !strings.Contains(err.Error(), "an answer has") {
		t.Errorf("%v", err)
	}
}

func TestAMessageThatIsTooLongEndsTheConnectionInWords(t *testing.T) {
	endless := io.MultiReader(strings.NewReader(`{"method":"`), blanks{})
	err := Serve(t.Context(), Config{}, Lines(endless, io.Discard))
	if err == nil || !strings.Contains(err.Error(), "read from the client") {
		t.Errorf("it ends with %v", err)
	}
}

type blanks struct{}

func (blanks) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

func TestAnEditorThatReadsNoMoreHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made, ended := make(chan struct{}), false
		w := serve(t, func(ctx context.Context) error {
			close(made)
			err := untilDone(ctx)
			ended = true
			return err
		})
		w.send(promptLine("1", w.begin()))
		<-made
		start := time.Now()
		w.cancel()
		if err := <-w.served; !errors.Is(err, context.Canceled) || !ended {
			t.Errorf("it ends with %v, its session has ended: %v", err, ended)
		}
		if waited := time.Since(start); waited != replyGrace {
			t.Errorf("it waited %v", waited)
		}
	})
}

func TestACallThatRulesDecideIsNotAsked(t *testing.T) {
	t.Parallel()
	w := serveSessions(t, session.Config{Environment: environment.Config{
		Sandbox: environment.Sandbox{Type: "local"},
		Agent: environment.Agent{Name: "script", Config: []byte(`{"turns":[{"steps":[
			{"ask":{"run":["true"]}},{"ask":{"write":{"path":"a","content":"b"}}},{"ask":{"run":["false"]}}]}]}`)},
		Permissions: permission.Rules{Allow: []string{"Edit(**)", "Bash(true)"}, Deny: []string{"Bash(false)"}},
	}})
	id := w.begin()
	w.send(promptLine("1", id))
	for {
		line, err := w.lines.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(line, []byte("request_permission")) {
			t.Errorf("the client is asked: %s", line)
		}
		if bytes.Contains(line, []byte("stopReason")) {
			return
		}
	}
}
