package opencode

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

// serverUser is the name in the server's basic authentication.
const serverUser = "agentenv"

// server is a running "opencode serve" process, with a client of its API.
type server struct {
	*api
	proc       *child.Process
	unfollow   func()        // stops reading the events; nil before follow
	eventsDone chan struct{} // closed at the end of the events, usually because the server has ended
	closing    atomic.Bool   // close is stopping the events
	silence    atomic.Int64  // the time.Duration without an event after which the server counts as hung
	reason     string        // why the driver ended the server; valid after eventsDone is closed
	log        startLog      // used during the start, then only by Prompt
	reported   bool          // reportServers has run; used only by Prompt
}

// listening matches the line with the address of the server.
var listening = agent.Pattern{Expr: `listening on (http://127\.0\.0\.1:[0-9]+)`}

// startServer starts a server for the session and waits until it listens, but not longer than
// patience. The variables in more are added to its environment.
func startServer(ctx context.Context, s runnerscripts.Session, more map[string]string, patience time.Duration) (*server, error) {
	password := rand.Text()
	env := append(environment(s, more), "OPENCODE_SERVER_PASSWORD="+password)
	argv, err := program(s.Agent, env)
	if err != nil {
		return nil, err
	}
	// Servers and commands of the session inherit TMPDIR, so the folder must be there.
	if err := os.MkdirAll(tempDir(s), 0o700); err != nil {
		return nil, err
	}
	where := make(chan string, 1)
	proc, err := child.Start(child.Command{
		Args: append(argv, "serve", "--hostname", "127.0.0.1", "--port", "0"), Dir: s.Paths.Workspace, Env: env, Unpack: ownDir(s),
	}, func(line []byte) {
		if m := listening.Get().FindSubmatch(line); m != nil {
			select {
			case where <- string(m[1]):
			default: // this line was seen before
			}
		}
	})
	if err != nil {
		return nil, startFailure(err)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case base := <-where:
		return &server{api: newAPI(base, password), proc: proc, eventsDone: make(chan struct{})}, nil
	case <-proc.Done():
		return nil, startFailure(errors.New(proc.Crash()))
	case <-timer.C:
		err = startFailure(fmt.Errorf("it did not listen within %v", patience))
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	proc.Kill()
	return nil, err
}

// follow starts a goroutine that passes the server's events to handle, one at a time, until the
// server ends. It kills a hung server: one that is silent for the given time.
func (s *server) follow(ctx context.Context, silence time.Duration, handle func(context.Context, []byte)) error {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	connected := context.AfterFunc(ctx, cancel)
	st, err := s.events(life, "/event")
	connected()
	if err != nil {
		cancel()
		return err
	}
	s.unfollow = cancel
	s.silence.Store(int64(silence))
	go func() {
		defer close(s.eventsDone)
		defer cancel()
		s.read(life, cancel, st, handle)
		if !s.closing.Load() {
			s.proc.Kill() // the driver cannot follow its events any more
		}
	}()
	return nil
}

func (s *server) read(ctx context.Context, cancel func(), st *stream, handle func(context.Context, []byte)) {
	defer st.body.Close()
	silence := func() time.Duration { return time.Duration(s.silence.Load()) }
	quiet := time.AfterFunc(silence(), cancel)
	defer quiet.Stop()
	for {
		line, err := st.next()
		if !quiet.Stop() && err != nil {
			s.reason = fmt.Sprintf("it said nothing for %v, and was ended", silence())
		}
		if err != nil {
			return
		}
		handle(ctx, line) // may block on a slow reader, so the timer is stopped
		quiet.Reset(silence())
	}
}

// crash returns how the server ended. It is valid after kill, or after eventsDone is closed.
func (s *server) crash() string {
	if s.reason != "" {
		return s.reason
	}
	return s.proc.Crash()
}

// close ends the server gracefully. It first stops reading the events, because the server waits for
// their readers. It sends SIGTERM, because the server ignores the end of its input.
func (s *server) close() {
	s.closing.Store(true)
	if s.unfollow != nil {
		s.unfollow()
		<-s.eventsDone
	}
	s.proc.Signal(syscall.SIGTERM)
	s.proc.Close()
	s.forget()
}

// kill ends the server at once.
func (s *server) kill() {
	s.proc.Kill()
	if s.unfollow != nil {
		<-s.eventsDone
	}
	s.forget()
}
