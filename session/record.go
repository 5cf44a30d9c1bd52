package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// The record of a session holds its configuration and its state, so that its ID is enough to
// open it again. The log is authoritative: the state in the record only saves reading it.

// The values of store.Record.Status.
const (
	statusIdle    = "idle"
	statusRunning = "running"
	statusFailed  = "failed" // the last query failed
)

// storedConfig is the part of a configuration that a record holds. Callbacks, loggers,
// providers whose types are not registered, the values of Agent.Env and the credentials in the URLs of
// repositories are not in it.
type storedConfig struct {
	Environment environment.Config `json:"environment"`
	// Variables are the names of Agent.Env.
	Variables []string `json:"variables,omitempty"`
	// Within is Environment.Session.Within.
	Within []permission.Rules `json:"within,omitempty"`
	// User is Environment.Session.User.
	User              string                    `json:"user,omitempty"`
	PermissionTimeout time.Duration             `json:"permission_timeout,omitempty"`
	RejectBusy        bool                      `json:"reject_busy,omitempty"`
	MaxQueue          int                       `json:"max_queue,omitempty"`
	HealthInterval    time.Duration             `json:"health_interval,omitempty"`
	IdleTimeout       time.Duration             `json:"idle_timeout,omitempty"`
	NoFiles           bool                      `json:"no_files,omitempty"`
	MaxQuerySize      int64                     `json:"max_query_size,omitempty"`
	MaxSessionSize    int64                     `json:"max_session_size,omitempty"`
	WatchWorkspace    *environment.FilesOptions `json:"watch_workspace,omitempty"`

	CheckpointInterval time.Duration `json:"checkpoint_interval,omitempty"`
	KeepPeriodic       int           `json:"keep_periodic,omitempty"`
}

// stored returns the configuration as a record holds it.
func (c Config) stored() (json.RawMessage, error) {
	env := c.Environment
	variables := slices.Sorted(maps.Keys(env.Agent.Env))
	env.Agent.Env, env.SessionID = nil, ""
	// Without the blocks of other types: the program that goes on may not have them.
	env.Sandbox = environment.Sandbox{
		Type: env.Sandbox.Type, Spec: env.Sandbox.Spec, AllowHosts: env.Sandbox.AllowHosts, Provider: env.Sandbox.Provider,
	}
	env.Workspace = slices.Clone(env.Workspace)
	for i, src := range env.Workspace {
		if src.Git == nil {
			continue
		}
		if at, err := url.Parse(src.Git.URL); err == nil && at.User != nil {
			bare := *src.Git
			at.User = nil
			bare.URL = at.String()
			env.Workspace[i].Git = &bare
		}
	}
	data, err := json.Marshal(storedConfig{
		Environment: env, Variables: variables, Within: env.Session.Within, User: env.Session.User, PermissionTimeout: env.PermissionTimeout,
		RejectBusy: c.RejectBusy, MaxQueue: c.MaxQueue, HealthInterval: c.HealthInterval, IdleTimeout: c.IdleTimeout,
		NoFiles: c.NoFiles, WatchWorkspace: c.WatchWorkspace,
		MaxQuerySize: c.MaxQuerySize, MaxSessionSize: c.MaxSessionSize,
		CheckpointInterval: c.CheckpointInterval, KeepPeriodic: c.KeepPeriodic,
	})
	if err != nil {
		return nil, fmt.Errorf("store the configuration: %w", err)
	}
	return data, nil
}

// recalled returns the stored configuration, completed with the fields of c that a record
// cannot hold.
func (c Config) recalled(data json.RawMessage) (Config, error) {
	var from storedConfig
	if err := json.Unmarshal(data, &from); err != nil {
		return c, fmt.Errorf("the stored configuration cannot be read: %w; give Environment", err)
	}
	given := c.Environment
	env := from.Environment
	env.Agent.Env, env.Session.User, env.Session.Within = given.Agent.Env, from.User, from.Within
	if primitives.NewProvider(env.Sandbox.Type) == nil { // the record has the settings of the others
		env.Sandbox.Provider = given.Sandbox.Provider
	}
	env.OnPermission, env.PermissionTimeout = given.OnPermission, from.PermissionTimeout
	if given.PermissionTimeout != 0 {
		env.PermissionTimeout = given.PermissionTimeout
	}
	env.Progress, env.Logger, env.Trust, env.PermissionLimits = given.Progress, given.Logger, given.Trust, given.PermissionLimits
	env.AgentTools, env.Session.CountTo, env.Session.From = given.AgentTools, given.Session.CountTo, given.Session.From
	if given.Runner != "" {
		env.Runner = given.Runner
	}
	c.Environment = env
	c.RejectBusy, c.MaxQueue, c.HealthInterval, c.IdleTimeout = from.RejectBusy, from.MaxQueue, from.HealthInterval, from.IdleTimeout
	c.NoFiles, c.WatchWorkspace = from.NoFiles, from.WatchWorkspace
	c.CheckpointInterval, c.KeepPeriodic = cmp.Or(c.CheckpointInterval, from.CheckpointInterval), cmp.Or(c.KeepPeriodic, from.KeepPeriodic)
	// Given ones win: a session that is full goes on only with a larger one.
	c.MaxQuerySize, c.MaxSessionSize = cmp.Or(c.MaxQuerySize, from.MaxQuerySize), cmp.Or(c.MaxSessionSize, from.MaxSessionSize)
	return c, nil
}

// recall fills in the stored configuration if the caller named only the session.
func (c Config) recall(ctx context.Context) (Config, error) {
	if c.ID == "" || c.Environment.Agent.Name != "" || c.Store == nil {
		return c, nil
	}
	rec, err := c.Store.Load(ctx, c.ID)
	if err != nil || len(rec.Config) == 0 {
		return c, err
	}
	return c.recalled(rec.Config)
}

// Stored returns the configuration with which a session was last opened, so that a program can
// change it before it opens the session. Fields that are not stored are missing; see [Open].
// The errors are those of store.Store.Load.
func Stored(ctx context.Context, st store.Store, id string) (Config, error) {
	cfg, err := Config{Store: st, ID: id}.recall(ctx)
	if err != nil {
		return Config{}, fmt.Errorf("stored configuration: %w", err)
	}
	return cfg, nil
}

// storeConfig replaces the configuration in the record with the current one.
func (s *AgentSession) storeConfig(ctx context.Context) error {
	config, err := s.cfg.stored()
	if err != nil {
		return err
	}
	return s.store.Update(ctx, s.id, func(r *store.Record) { r.Config = config })
}

// savedState is a state including its unexported fields.
type savedState struct {
	State
	ReadySeq uint64    `json:"ready_seq,omitempty"`
	Creating time.Time `json:"creating,omitzero"`
	Hosts    []string  `json:"hosts,omitempty"`
	Failed   bool      `json:"failed,omitempty"`

	Recent []acceptedQuery `json:"recent,omitempty"`

	Attached []store.Digest `json:"attached,omitempty"`
}

// ReadState returns the state of a session without opening it. If a program drives the session,
// the state may be slightly out of date. The errors are those of store.Store.Load and
// store.Store.Events.
func ReadState(ctx context.Context, st store.Store, id string) (State, error) {
	rec, err := st.Load(ctx, id)
	if err != nil {
		return State{}, err
	}
	state := newState()
	err = state.load(ctx, st, rec)
	return state, err
}

// load reads the state from a record and applies the later events of the log. If the stored
// state is unusable, load folds all events.
func (s *State) load(ctx context.Context, st store.Store, rec store.Record) error {
	var saved savedState
	if rec.StateSeq != 0 && rec.StateSeq <= rec.LastSeq && json.Unmarshal(rec.State, &saved) == nil && saved.LastSeq == rec.StateSeq {
		*s = saved.State
		s.Environment.readySeq, s.Environment.creating = saved.ReadySeq, saved.Creating
		s.hostRequests, s.failed, s.recent, s.attached = saved.Hosts, saved.Failed, saved.Recent, saved.Attached
	} else {
		s.ID, s.Agent = rec.ID, rec.Agent
	}
	for ev, err := range st.Events(ctx, rec.ID, s.LastSeq+1) {
		if err != nil {
			return err
		}
		s.apply(ev)
	}
	return nil
}

// maxSandboxes is how many sandboxes a record names, so that a session is found by their IDs.
const maxSandboxes = 100

// saveRecord writes the current state into the record.
func (s *AgentSession) saveRecord(ctx context.Context, status string) {
	s.mu.Lock()
	st := s.state.clone()
	s.mu.Unlock()
	saved := savedState{st, st.Environment.readySeq, st.Environment.creating, st.hostRequests, st.failed, st.recent, st.attached}
	data, err := json.Marshal(saved)
	if err == nil {
		err = s.store.Update(context.WithoutCancel(ctx), s.id, func(r *store.Record) {
			r.Status, r.Usage, r.Title, r.Summary = status, st.Usage, st.Title, st.Summary
			r.Sandbox = store.Sandbox{}
			if st.Environment.Status == EnvironmentReady {
				r.Sandbox = store.Sandbox{Type: st.Environment.Backend, ID: st.Environment.ID}
				if !slices.Contains(r.Sandboxes, r.Sandbox.ID) {
					r.Sandboxes = append(r.Sandboxes[max(0, len(r.Sandboxes)+1-maxSandboxes):], r.Sandbox.ID)
				}
			}
			r.State, r.StateSeq = data, st.LastSeq
		})
	}
	if err != nil { // not fatal: the log is complete
		s.log.Warn("the record of the session is out of date", eventlog.Error, err)
	}
}

// statusNow returns the status of the session for its record.
func (s *AgentSession) statusNow() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.state.Query != nil || len(s.state.Queued) > 0:
		return statusRunning
	case s.state.failed:
		return statusFailed
	}
	return statusIdle
}

// DelegatedBy is the key of a record's metadata with the ID of the session whose agent has started the session. What such a
// session has used counts towards the budget of that one, also when it is opened again.
const DelegatedBy = "delegated_by"

// Remove removes a session from a store. What it and the sessions that it has started have used still counts towards the budget
// of the session whose agent has started it. The caller must hold its lease, and its sandbox must have ended. The errors are those
// of store.Store.Delete. If the deletion fails, the next attempt counts the usage again.
func Remove(ctx context.Context, st store.Store, id string) error {
	rec, err := st.Load(ctx, id)
	if err != nil && !errors.Is(err, store.ErrCorrupt) { // nothing is known of a damaged one
		return err
	}
	if by := rec.Metadata[DelegatedBy]; by != "" {
		used, err := usageOf(ctx, st, id)
		if err != nil {
			return err
		}
		err = st.Update(ctx, by, func(r *store.Record) { r.Delegated = r.Delegated.Add(used) })
		// The usage was counted when that session was removed, and there is no budget in a damaged record.
		if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrCorrupt) {
			return fmt.Errorf("count the usage of the session to %s, whose agent has started it: %w", by, err)
		}
	}
	return st.Delete(ctx, id)
}

// usageOf returns what a session and those that it has started have used; nothing for one that was removed or whose record is
// damaged, or that is one of starters.
func usageOf(ctx context.Context, st store.Store, id string, starters ...string) (runnerscripts.Usage, error) {
	if slices.Contains(starters, id) {
		return runnerscripts.Usage{}, nil
	}
	used, err := readUsage(ctx, st, id)
	if err == nil {
		var delegated runnerscripts.Usage
		delegated, err = delegatedUsage(ctx, st, id, starters...)
		used = used.Add(delegated)
	}
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt) {
		return runnerscripts.Usage{}, nil
	}
	return used, err
}

// readUsage returns what a session itself has used.
func readUsage(ctx context.Context, st store.Store, id string) (runnerscripts.Usage, error) {
	rec, err := st.Load(ctx, id)
	if err != nil {
		return runnerscripts.Usage{}, err
	}
	state := newState() // its program may have died before it wrote the record
	err = state.load(ctx, st, rec)
	if errors.Is(err, store.ErrCorrupt) || errors.Is(err, store.ErrDropped) {
		return rec.Usage, nil
	}
	return state.Usage, err
}

// delegatedUsage returns what the sessions that a session has started have used, with those that they have started. starters are
// the session's own starter, the starter of that and so on: metadata that names sessions in a circle does not count them twice.
func delegatedUsage(ctx context.Context, st store.Store, id string, starters ...string) (runnerscripts.Usage, error) {
	for {
		before, err := st.Load(ctx, id)
		if err != nil {
			return runnerscripts.Usage{}, err
		}
		sum, err := startedUsage(ctx, st, id, append(starters, id))
		if err != nil {
			return runnerscripts.Usage{}, err
		}
		after, err := st.Load(ctx, id)
		if err != nil {
			return runnerscripts.Usage{}, err
		}
		if after.Delegated == before.Delegated { // else a session was removed, in the sum or not
			return sum.Add(after.Delegated), nil
		}
	}
}

// startedUsage returns what the sessions that a session has started, and that were not removed, have used.
func startedUsage(ctx context.Context, st store.Store, id string, starters []string) (sum runnerscripts.Usage, err error) {
	var started []string
	for rec, err := range st.List(ctx, store.Filter{Metadata: map[string]string{DelegatedBy: id}}) {
		if errors.Is(err, store.ErrCorrupt) {
			continue
		}
		if err != nil {
			return sum, err
		}
		started = append(started, rec.ID)
	}
	for _, id := range started {
		used, err := usageOf(ctx, st, id, starters...)
		if err != nil {
			return sum, err
		}
		sum = sum.Add(used)
	}
	return sum, nil
}
