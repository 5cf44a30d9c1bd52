package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/workspace"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// sandbox is the part of an environment that a session uses.
type sandbox interface {
	ID() string
	SessionID() string
	Isolation() primitives.Isolation
	// WorkspacePath returns the path of the workspace in the sandbox.
	WorkspacePath() string
	Durable() bool
	PrepareSession(ctx context.Context, s environment.Setup) (runnerscripts.SetupData, error)
	ExecuteQuery(ctx context.Context, q environment.Query) iter.Seq2[runnerscripts.Event, error]
	Respond(ctx context.Context, id string, d runnerscripts.PermissionDecision) error
	SetMode(ctx context.Context, mode string) error
	SetModel(ctx context.Context, model string) error
	ReadTranscript(ctx context.Context) (runnerscripts.Transcript, error)
	StopAgent(ctx context.Context) error
	WorkspaceFiles(ctx context.Context, opts environment.FilesOptions) ([]environment.WorkspaceFile, error)
	WatchWorkspace(ctx context.Context, opts environment.FilesOptions) (iter.Seq2[runnerscripts.Event, error], error)
	Healthy(ctx context.Context) error
	Interrupt(ctx context.Context) error
	// Close ends the sandbox, unless it is kept; Terminate ends it in any case.
	Close() error
	Terminate(ctx context.Context) error

	// Files returns the files of the sandbox.
	Files() primitives.Files
	// Pack returns the workspace as a tar archive.
	Pack(ctx context.Context, opts primitives.PackOptions) (io.ReadCloser, error)
	// States is that of the configuration with which the sandbox was created; nil if there was none.
	States() *workspace.Tracker
	// Fork returns n copies, each with its own SessionID.
	Fork(ctx context.Context, n int) ([]sandbox, error)
}

// environmentSandbox adapts an environment to the sandbox interface.
type environmentSandbox struct {
	*environment.Environment
	states *workspace.Tracker
}

// Isolation returns the isolation of the sandbox. If the sandbox does not report it, the
// strongest is assumed.
func (e environmentSandbox) Isolation() primitives.Isolation {
	return cmp.Or(e.Primitive().Capabilities().Isolation, primitives.IsolationFull)
}

func (e environmentSandbox) WorkspacePath() string { return e.Primitive().Paths().Workspace }

func (e environmentSandbox) Files() primitives.Files { return e.Primitive() }

func (e environmentSandbox) Pack(ctx context.Context, opts primitives.PackOptions) (io.ReadCloser, error) {
	return primitives.Pack(ctx, e.Primitive(), ".", opts)
}

func (e environmentSandbox) States() *workspace.Tracker { return e.states }

func (e environmentSandbox) Fork(ctx context.Context, n int) ([]sandbox, error) {
	copies, err := e.Environment.Fork(ctx, n)
	made := make([]sandbox, len(copies))
	for i, c := range copies {
		made[i] = environmentSandbox{c, nil}
	}
	return made, err
}

func environmentCreator(create func(context.Context, environment.Config) (*environment.Environment, error)) createFunc {
	if create == nil {
		create = environment.Create
	}
	return func(ctx context.Context, cfg environment.Config) (sandbox, error) {
		env, err := create(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return environmentSandbox{env, cfg.Session.States}, nil
	}
}

// The reasons of runnerscripts.EnvironmentTerminated.
const (
	reasonManual    = "manual"
	reasonIdle      = "idle"
	reasonUnhealthy = "unhealthy"
	reasonExpired   = "expired"
	reasonForked    = "forked"
	reasonMoved     = "moved"
)

// liveSandbox is the current sandbox of a session, with the goroutines that monitor it.
type liveSandbox struct {
	sandbox
	backend string
	used    time.Time // when the last query ended; used by the worker only

	// What the checkpoints have stored of the sandbox. AgentSession.saving guards it.
	states          *workspace.Tracker
	transcript      string // the digest of its blob; empty if none is stored
	saved           int64  // size of the stored transcript, at least 1; zero if none is stored
	queryID, prompt string // of the last query
	failed          string // the last error of storing the workspace; empty if it was stored
	unreadable      bool   // some files could not be read

	cancel context.CancelFunc // of the goroutines
	wg     sync.WaitGroup
	died   chan struct{} // closed when the sandbox is found dead
	once   sync.Once
}

// explain adds the end of the sandbox to the error of a query, if the sandbox is gone: the error
// of a dying runner does not name the cause.
func (l *liveSandbox) explain(ctx context.Context, err error) error {
	if err == nil || gone(err) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if health := l.Healthy(ctx); gone(health) {
		return errors.Join(err, health)
	}
	return err
}

func (l *liveSandbox) die() { l.once.Do(func() { close(l.died) }) }

func (l *liveSandbox) isDead() bool {
	select {
	case <-l.died:
		return true
	default:
		return false
	}
}

// gone reports whether err means that the sandbox no longer exists.
func gone(err error) bool {
	return errors.Is(err, primitives.ErrUnavailable) || errors.Is(err, primitives.ErrTerminated) ||
		errors.Is(err, environment.ErrClosed)
}

// live returns the current sandbox, or nil.
func (s *AgentSession) live() *liveSandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sandbox
}

// ensureSandbox returns the sandbox, and creates it if there is none. Only the worker calls it,
// so there is never a second sandbox. A failed creation leaves nothing behind: the next query
// tries again.
func (s *AgentSession) ensureSandbox(ctx context.Context) (*liveSandbox, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if live := s.live(); live != nil && !live.isDead() {
		return live, nil
	} else if live != nil {
		_ = s.endSandbox(ctx, reasonUnhealthy)
	}
	info := runnerscripts.EnvironmentInfo{Backend: s.cfg.Environment.Sandbox.Type}
	if err := s.append(ctx, event(runnerscripts.TypeEnvironmentCreating, "", info)); err != nil {
		return nil, err
	}
	made := s.options()
	sb, restored, err := s.makeSandbox(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		report := event(runnerscripts.TypeEnvironmentError, "", runnerscripts.ErrorInfo{
			Code: failure(err).Code, Message: err.Error(),
		})
		return nil, errors.Join(err, s.append(ctx, report))
	}
	if err := s.append(ctx, restored...); err != nil {
		return nil, errors.Join(err, sb.Terminate(ctx))
	}
	if err := s.adopt(ctx, sb, made); err != nil {
		return nil, errors.Join(err, sb.Terminate(ctx))
	}
	live := s.live()
	return live, s.start(ctx, live)
}

// options returns the options set with SetOptions.
func (s *AgentSession) options() Options {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Options
}

// adopt makes sb the session's sandbox. made are the options with which it was created; adopt
// applies newer ones.
func (s *AgentSession) adopt(ctx context.Context, sb sandbox, made Options) error {
	s.optionsMu.Lock()
	defer s.optionsMu.Unlock()
	if now := s.options(); now != made {
		if err := set(ctx, sb, now); err != nil {
			return err
		}
	}
	return s.setSandbox(ctx, sb, runnerscripts.TypeEnvironmentReady, "")
}

// setSandbox makes sb the session's sandbox and stores an event that reports it.
func (s *AgentSession) setSandbox(ctx context.Context, sb sandbox, typ runnerscripts.EventType, message string) error {
	info := runnerscripts.EnvironmentInfo{
		Backend: s.cfg.Environment.Sandbox.Type, ID: sb.ID(), Isolation: sb.Isolation(), Status: string(primitives.StatusRunning),
		Message: message, Workspace: sb.WorkspacePath(),
	}
	live := &liveSandbox{sandbox: sb, states: sb.States(), backend: info.Backend, used: time.Now(), died: make(chan struct{})}
	events := []runnerscripts.Event{event(typ, "", info)}
	if was := s.head().Path; was != "" && was != info.Workspace && !inPlace(s.cfg.Environment) {
		events = append(events, event(runnerscripts.TypeLog, "", runnerscripts.Log{Level: "warn", Message: fmt.Sprintf(
			"the workspace was at %s and is at %s: absolute links into it were changed; other absolute paths in files, as in a Python venv, still name the old path",
			was, info.Workspace)}))
	}
	if err := s.append(ctx, events...); err != nil {
		return err
	}
	s.startMonitors(context.WithoutCancel(ctx), live)
	s.mu.Lock()
	s.sandbox = live
	s.mu.Unlock()
	s.saveRecord(ctx, s.statusNow()) // record the sandbox now, in case this program dies
	return nil
}

// makeSandbox creates a sandbox, restores the agent's memory in it, and returns the events that
// report what was restored.
func (s *AgentSession) makeSandbox(ctx context.Context) (sandbox, []runnerscripts.Event, error) {
	from, err := s.loadBeginning(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer from.close()
	cfg := s.environmentConfig(from)
	if !cfg.Delegation.IsZero() {
		delegated, err := delegatedUsage(ctx, s.store, s.id)
		if err != nil {
			return nil, nil, err
		}
		cfg.Session.Used.Usage = cfg.Session.Used.Usage.Add(delegated)
	}
	if cfg.Session.States, err = s.newStates(ctx, from.checkpoint, from.workspace != nil); err != nil {
		return nil, nil, err
	}
	sb, err := s.create(ctx, cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("create environment: %w", err)
	}
	data, err := sb.PrepareSession(ctx, environment.Setup{Transcript: from.transcript})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("prepare session: %w", err), sb.Terminate(ctx))
	}
	return sb, from.events(data), nil
}

// environmentConfig returns the configuration for a new sandbox.
func (s *AgentSession) environmentConfig(from *beginning) environment.Config {
	cfg := s.cfg.Environment
	cfg.SessionID = s.id
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg.Session.From, cfg.Session.KeepPath = cmp.Or(s.state.Environment.Isolation, cfg.Session.From), s.state.Environment.Workspace
	cfg.Session.Used.Usage, cfg.Session.Sources = s.state.Usage, s.cfg.Environment.Workspace
	switch {
	case from.workspace != nil:
		cfg.Workspace = []environment.Source{{Tar: &environment.Tar{Reader: from.workspace, Root: from.checkpoint.Path, Whole: true}}}
	case inPlace(cfg) && s.state.Environment.Starts > 0:
		cfg.Workspace = nil // the agent may have changed the user's folder since
	}
	setIf(&cfg.Agent.Model, s.state.Options.Model)
	setIf(&cfg.Agent.PermissionMode, s.state.Options.Mode)
	cfg.OnPermission = s.opening(cfg.OnPermission)
	return cfg
}

// inPlace reports whether the workspace is a folder of the user. Such a folder outlives the
// sandbox, and is neither stored nor restored.
func inPlace(cfg environment.Config) bool {
	return cfg.Sandbox.Workspace != ""
}

// endSandbox ends the current sandbox for the given reason. It first stores the state that a
// new sandbox needs, unless this sandbox is dead or the session is being destroyed.
func (s *AgentSession) endSandbox(ctx context.Context, reason string) error {
	s.mu.Lock()
	live, destroy := s.sandbox, s.destroy
	s.sandbox = nil
	s.mu.Unlock()
	if live == nil {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	live.cancel()
	live.wg.Wait()
	if err := s.confirm(ctx); err != nil {
		return errors.Join(err, live.Close())
	}
	var events []runnerscripts.Event
	if reason != reasonUnhealthy && !destroy {
		s.saving.Lock()
		events = s.saveFinalTranscript(ctx, live)
		events = append(events, s.checkpointEvents(ctx, live, runnerscripts.CheckpointEnd)...)
		_ = s.append(ctx, events...) // if append fails the session has ended and reports it
		s.saving.Unlock()
		events = nil
	}
	end := func() error { return live.Terminate(ctx) }
	if reason == reasonUnhealthy && s.durable {
		end = live.Close // what was stopped can be started again, with its files
	}
	err := end()
	if reason == reasonUnhealthy {
		// Errors of closing a dead sandbox are expected.
		err = nil
	}
	events = append(events, event(runnerscripts.TypeEnvironmentTerminated, "", runnerscripts.EnvironmentTerminated{Reason: reason}))
	if reason == reasonUnhealthy && s.durable {
		events = append(events, event(runnerscripts.TypeLog, "", runnerscripts.Log{Level: "warn", Message: fmt.Sprintf(
			"the kept sandbox %s does not answer and was left as it is, and the next prompt gets a new one; if it is still there, 'envctl rm %[1]s' (environment.Remove) ends it", live.ID())}))
	}
	if err != nil {
		err = fmt.Errorf("end environment %s, which may go on: %w", live.ID(), err)
		events = append(events, event(runnerscripts.TypeError, "", runnerscripts.ErrorInfo{Code: failure(err).Code, Message: err.Error()}))
	}
	return errors.Join(err, s.append(ctx, events...))
}

// failure returns the payload of a query_failed event for err.
func failure(err error) runnerscripts.QueryFailed {
	if err == nil {
		return runnerscripts.QueryFailed{Code: runnerscripts.FailInternal, Message: "the query ended without saying how"}
	}
	if q := new(environment.QueryError); errors.As(err, &q) {
		return q.Failure
	}
	if f := new(runnerscripts.ScriptFailure); errors.As(err, &f) {
		return runnerscripts.QueryFailed{Code: f.Code, Message: f.Message, Detail: f.Detail}
	}
	return runnerscripts.QueryFailed{Code: failureCode(err), Message: err.Error()}
}

// isNameError reports whether a sandbox cannot be created because its configuration names
// something that is missing, such as an image or a user, or that already exists.
func isNameError(err error) bool {
	failed, ok := errors.AsType[*primitives.Error](err)
	if !ok || failed.Op != "create" {
		return false
	}
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) || errors.Is(err, primitives.ErrUnknownUser)
}

// failureCode returns the code of an error that did not come from a script.
func failureCode(err error) runnerscripts.FailureCode {
	switch {
	case gone(err):
		return runnerscripts.FailUnavailable
	case errors.Is(err, environment.ErrConfig), errors.Is(err, environment.ErrTrust), errors.Is(err, fs.ErrInvalid), isNameError(err):
		return runnerscripts.FailInvalidRequest
	case errors.Is(err, errors.ErrUnsupported):
		return runnerscripts.FailUnsupported
	}
	return runnerscripts.FailInternal
}
