package environment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"reflect"

	"github.com/agentenv-dev/agentenv/primitives"
)

// record is what a sandbox that outlives its program remembers of its
// environment, in the folder App. Config.Env and Agent.Env are not in it: they may
// be secrets. The profile is, as the agent's own files have it.
type record struct {
	SessionID     string   `json:"session_id"`
	Agent         Agent    `json:"agent"`
	Profile       *Profile `json:"profile,omitempty"`
	IgnoreChanges []string `json:"ignore_changes,omitempty"`
}

const (
	recordFile   = "environment.json"
	baselineFile = "baseline.tar"
	maxRecord    = 16 << 20
)

// leaveRecord writes down what [Attach] needs.
func (e *Environment) leaveRecord(ctx context.Context) error {
	if err := e.leaveNote(ctx); err != nil {
		return err
	}
	packed, err := primitives.Pack(ctx, e.prim, ".", primitives.PackOptions{Ignore: e.cfg.notCounted()})
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("leave the workspace's state in the sandbox: %w", err)
	}
	return errors.Join(e.leaveBaseline(ctx, packed), packed.Close())
}

// leaveBaseline writes down what changes are counted from.
func (e *Environment) leaveBaseline(ctx context.Context, packed io.Reader) error {
	if err := e.prim.WriteFile(ctx, path.Join(e.prim.Paths().App, baselineFile), packed, private()); err != nil {
		return fmt.Errorf("leave the workspace's state in the sandbox: %w", err)
	}
	return nil
}

// private is for files that are nobody else's business.
func private() primitives.WriteOptions { return primitives.WriteOptions{Mode: 0o600} }

// leaveNote writes the record itself, without the state of the workspace.
func (e *Environment) leaveNote(ctx context.Context) error {
	agent := e.session().Agent
	agent.Env = nil
	data, err := json.Marshal(record{SessionID: e.cfg.SessionID, Agent: agent, Profile: &e.cfg.Profile, IgnoreChanges: e.cfg.IgnoreChanges})
	if err != nil {
		return err
	}
	if err := e.prim.WriteFile(ctx, path.Join(e.prim.Paths().App, recordFile), bytes.NewReader(data), private()); err != nil {
		return fmt.Errorf("leave a record in the sandbox: %w", err)
	}
	return nil
}

// readRecord fills in what cfg leaves open from the record of a sandbox, if it
// has one.
func readRecord(ctx context.Context, p primitives.EnvironmentPrimitive, cfg Config) (Config, error) {
	data, err := primitives.ReadFile(ctx, p, path.Join(p.Paths().App, recordFile), maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return cfg, nil
	}
	if err != nil {
		return cfg, fmt.Errorf("read the sandbox's record: %w", err)
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return cfg, fmt.Errorf("end the sandbox with Remove, or delete %s in it: this record of what it was made with is damaged: %w",
			path.Join(p.Paths().App, recordFile), err)
	}
	if cfg.Agent.Name == "" {
		env := cfg.Agent.Env
		cfg.Agent = r.Agent
		cfg.Agent.Env = env
		if r.Profile != nil && reflect.ValueOf(cfg.Profile).IsZero() {
			cfg.Profile = *r.Profile
		}
	}
	if cfg.SessionID == "" {
		cfg.SessionID = r.SessionID
	}
	if cfg.IgnoreChanges == nil {
		cfg.IgnoreChanges = r.IgnoreChanges
	}
	return cfg, nil
}

// readBaseline reads the workspace as it was when the sandbox was made.
func readBaseline(ctx context.Context, p primitives.EnvironmentPrimitive) (_ *snapshot, err error) {
	r, err := p.Open(ctx, path.Join(p.Paths().App, baselineFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make the sandbox with Keep to compare it with its beginning: this one has no record of it: %w", errors.ErrUnsupported)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return readSnapshot(r, true, nil)
}
