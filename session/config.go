package session

import (
	"context"
	"fmt"
	"io/fs"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Defaults of [Config].
const (
	DefaultHealthInterval = 30 * time.Second
	DefaultMaxQueue       = 64
	DefaultMaxQuerySize   = 1 << 30
	DefaultMaxSessionSize = 4 << 30
	// DefaultCheckpointInterval is how often a long query is saved.
	DefaultCheckpointInterval = time.Minute
	// DefaultKeepPeriodic is an hour of a long query.
	DefaultKeepPeriodic = 60
)

// Config configures a session. Only Environment is required.
type Config struct {
	// Environment configures the sandbox and the agent. Its OnPermission answers permission
	// requests; environment.AnswerLater leaves them to [AgentSession.Respond]. The session
	// overrides its SessionID, and sets its From to the isolation of the last sandbox if there was
	// one, so that a less isolated sandbox needs Trust. A Tar source must be given by its path, because the
	// session may read it again; see [AgentSession.WriteWorkspace]. Its Logger also receives the session's records.
	//
	// With Sandbox.Keep the session is durable: its sandbox and the query that runs in it
	// survive the end of this program, even a crash. [AgentSession.Close] detaches from both,
	// and [Open] reattaches. [AgentSession.TerminateEnvironment], [AgentSession.Destroy] and
	// IdleTimeout end the sandbox; one that does not answer is replaced, and not removed. If the type of sandbox has no durable commands, or Scripts
	// replaces ExecuteQuery, the query ends with the program and only the sandbox survives.
	Environment environment.Config
	// Create creates an environment, for types of sandboxes that environment.Create does not
	// support. Closing that environment must end its sandbox, unless the sandbox is kept. Nil
	// means environment.Create.
	Create func(ctx context.Context, cfg environment.Config) (*environment.Environment, error)

	// Store stores the session. Nil means a private memory store that lives as long as the
	// session.
	Store store.Store
	// ID is the stored session to continue. Empty means a new session.
	ID string
	// Metadata goes into the store's record of a new session.
	Metadata map[string]string

	// RejectBusy refuses a prompt with ErrBusy while another query runs, instead of queueing
	// it.
	RejectBusy bool
	// MaxQueue is how many prompts may wait. Zero means DefaultMaxQueue.
	MaxQueue int

	// HealthInterval is the time between health checks of the sandbox. Zero means
	// DefaultHealthInterval, a negative value no checks.
	HealthInterval time.Duration
	// IdleTimeout ends the sandbox, and all processes in it, when no query has run for this
	// long. Zero means never.
	IdleTimeout time.Duration
	// NoFiles says that a [Checkpoint] has no files of the workspace: a new sandbox then starts with the sources of the
	// Environment. Otherwise Environment.Checkpoints says which files it has. A workspace that is a folder of the user
	// is used as it is, and never stored.
	//
	// The session takes a checkpoint when the first sandbox is ready, after each query and when
	// a sandbox ends. A checkpoint reads and stores only the changes since the last one. All but
	// periodic ones stay until the session is removed, even in a memory store.
	NoFiles bool
	// MaxQuerySize and MaxSessionSize are how many bytes the events of one query, and the events and checkpoints of the
	// session, may add to the store, before it compresses them. A query that reaches one is stopped and fails with the
	// code "limit" and primitives.ErrLimit; beyond the second the session accepts no prompt. A checkpoint whose files
	// would reach it has none. Zero means DefaultMaxQuerySize and DefaultMaxSessionSize, a negative number no limit.
	MaxQuerySize, MaxSessionSize int64
	// CheckpointInterval is how often a checkpoint is also taken while a query runs. Zero
	// means DefaultCheckpointInterval, a negative one never.
	CheckpointInterval time.Duration
	// KeepPeriodic is how many of these periodic checkpoints keep their files, the newest ones and
	// for a day. The files of older ones are removed, some at once, while a query runs: to use one
	// is then ErrPruned. The present one, and one from which Rewind has gone on, keep theirs. Zero
	// means DefaultKeepPeriodic, a negative number all.
	KeepPeriodic int
	// WatchWorkspace reports changes in the workspace as file events, which can come
	// after the end of the query that made them; see [Turn.Events]. Nil reports none.
	WatchWorkspace *environment.FilesOptions

	forked func(*AgentSession) error // takes the sessions that are forked from this one; nil for none
}

// withDefaults returns the configuration with zero values replaced by their defaults.
func (c Config) withDefaults() (Config, error) {
	if c.Environment.Agent.Name == "" {
		return c, fmt.Errorf("%w: the agent has no name; give agent.name, for example %q", fs.ErrInvalid, "claude")
	}
	for i, src := range c.Environment.Workspace {
		if src.Tar != nil && src.Tar.Reader != nil {
			return c, fmt.Errorf("%w: Environment.Workspace[%d]: a reader can be read only once, and a session may need the archive again; give its path, or use WriteWorkspace", fs.ErrInvalid, i)
		}
	}
	if c.MaxQueue < 0 {
		return c, fmt.Errorf("%w: the limit of the queue is negative; zero means the default, and a session that rejects prompts while it is busy queues nothing", fs.ErrInvalid)
	}
	if c.IdleTimeout < 0 {
		return c, fmt.Errorf("%w: the idle timeout is negative; zero means never", fs.ErrInvalid)
	}
	if c.Store == nil {
		c.Store = store.NewMemory()
	}
	setDefault(&c.HealthInterval, DefaultHealthInterval)
	setDefault(&c.MaxQueue, DefaultMaxQueue)
	setDefault(&c.MaxQuerySize, DefaultMaxQuerySize)
	setDefault(&c.MaxSessionSize, DefaultMaxSessionSize)
	setDefault(&c.CheckpointInterval, DefaultCheckpointInterval)
	setDefault(&c.KeepPeriodic, DefaultKeepPeriodic)
	return c, nil
}

// Check returns those errors of [Open] for a new session that come before anything is stored: a configuration that makes no sense.
// It makes nothing, and reaches no sandbox; see environment.Config.Check.
func (c Config) Check(ctx context.Context) error {
	c, err := c.withDefaults()
	if err == nil {
		err = c.check(ctx)
	}
	if err != nil {
		return fmt.Errorf("check the session: %w", err)
	}
	return nil
}

// check returns the errors that environment.Create would return before it creates a sandbox. It
// does not require the sources of the workspace, nor the files of a delegation, for a stored
// session.
func (c Config) check(ctx context.Context) error {
	if c.ID == "" {
		if err := c.Environment.Delegation.Check(); err != nil {
			return err
		}
	}
	if c.Create != nil {
		return nil
	}
	cfg := c.Environment
	if c.ID != "" {
		cfg.Workspace = nil
	}
	return cfg.Check(ctx)
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
