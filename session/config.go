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
	DefaultMaxWorkspace   = 256 << 20
	// DefaultCheckpointInterval is how often a long query is saved.
	DefaultCheckpointInterval = time.Minute
)

// Config says how a session works. Only Environment is required.
type Config struct {
	// Environment is the sandbox and the agent, and says with its OnPermission who
	// answers permission requests: environment.AnswerLater leaves them to
	// [AgentSession.Respond]. Its SessionID is replaced by the session's. Its From is that of
	// the last sandbox, so that a less isolated one needs its Trust. A Tar source must
	// be given by its path, because it may be needed again. Its Logger takes the
	// session's records, too.
	//
	// With Sandbox.Keep the session is durable: its sandbox and the query that runs in it
	// outlive this program, however that ends. [AgentSession.Close] lets go of both, and
	// [Open] goes on with them. [AgentSession.TerminateEnvironment],
	// [AgentSession.Destroy] and IdleTimeout end the sandbox. Where the type of sandbox has
	// no durable commands, or Scripts has an own ExecuteQuery, the query ends with the program
	// and only the sandbox stays.
	Environment environment.Config
	// Create makes an environment, for sandboxes that environment.Create does
	// not know. Closing that environment must end its sandbox, unless it is kept. Nil means
	// environment.Create.
	Create func(ctx context.Context, cfg environment.Config) (*environment.Environment, error)

	// Store keeps the session. Nil means a memory store of its own, which ends
	// with the session.
	Store store.Store
	// ID is a session of the store to go on with. Empty means a new session.
	ID string
	// Metadata goes into the store's record of a new session.
	Metadata map[string]string

	// RejectBusy refuses a prompt with ErrBusy while another one is worked on,
	// instead of queueing it.
	RejectBusy bool
	// MaxQueue is how many prompts may wait. Zero means DefaultMaxQueue.
	MaxQueue int

	// HealthInterval is how often the sandbox is asked whether it still works.
	// Zero means DefaultHealthInterval, a negative one never.
	HealthInterval time.Duration
	// IdleTimeout ends the sandbox when no query has run for so long; what the
	// agent left running in it ends too. Zero means never.
	IdleTimeout time.Duration
	// MaxWorkspace is the size in bytes up to which a [Checkpoint] stores the workspace, so
	// that a new sandbox starts with it. Zero means DefaultMaxWorkspace; a negative one stores
	// none, and a new sandbox then starts with the sources of the Environment. A workspace
	// that is a folder of the user is used as it is, and never stored.
	//
	// A checkpoint is taken when the first sandbox is ready, after each query and when a
	// sandbox ends. It reads and stores only what has changed since the last one. All of them
	// stay until the session is removed, in a store in memory, too.
	MaxWorkspace int64
	// CheckpointInterval is how often a checkpoint is also taken while a query runs. Zero
	// means DefaultCheckpointInterval, a negative one never.
	CheckpointInterval time.Duration
	// WatchWorkspace reports changes in the workspace as file events, which can come
	// after the end of the query that made them; see [Turn.Events]. Nil reports none.
	WatchWorkspace *environment.FilesOptions
}

// withDefaults returns the configuration with every zero replaced by what it
// means.
func (c Config) withDefaults() (Config, error) {
	if c.Environment.Agent.Name == "" {
		return c, fmt.Errorf("%w: Environment.Agent.Name is empty; name an agent, for example %q", fs.ErrInvalid, "claude")
	}
	for i, src := range c.Environment.Workspace {
		if src.Tar != nil && src.Tar.Reader != nil {
			return c, fmt.Errorf("%w: Environment.Workspace[%d]: a reader can be read only once, and a session may need the archive again; give its path", fs.ErrInvalid, i)
		}
	}
	if c.MaxQueue < 0 {
		return c, fmt.Errorf("%w: MaxQueue is negative; use RejectBusy to queue nothing", fs.ErrInvalid)
	}
	if c.IdleTimeout < 0 {
		return c, fmt.Errorf("%w: IdleTimeout is negative; zero means never", fs.ErrInvalid)
	}
	if c.Store == nil {
		c.Store = store.NewMemory()
	}
	setDefault(&c.HealthInterval, DefaultHealthInterval)
	setDefault(&c.MaxQueue, DefaultMaxQueue)
	setDefault(&c.MaxWorkspace, DefaultMaxWorkspace)
	setDefault(&c.CheckpointInterval, DefaultCheckpointInterval)
	return c, nil
}

// check refuses an environment that environment.Create would refuse without making a
// sandbox. A session of the store may not need the sources of the workspace again.
func (c Config) check(ctx context.Context) error {
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
