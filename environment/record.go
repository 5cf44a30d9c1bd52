package environment

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"reflect"
	"regexp"

	"github.com/agentenv-dev/agentenv/environment/internal/kept"
	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// note is what a sandbox stores about its environment for the next program, in the folder App. A
// sandbox that is not kept stores it for its grace period. Any process in the sandbox can change
// it, so it holds nothing that decides what is run or allowed: this machine stores that, see
// [madeRecord].
type note struct {
	SessionID     string   `json:"session_id"`
	IgnoreChanges []string `json:"ignore_changes,omitempty"`
}

const (
	noteFile     = "environment.json"
	baselineFile = "baseline.tar"
	maxNote      = 16 << 20
	// maxPadding limits what follows the end of an archive.
	maxPadding = 1 << 20
)

// sessionPattern matches a session ID that is read from a sandbox.
var sessionPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$`)

// writeRecord stores what [Attach] needs. For a sandbox that is not kept it leaves out the state
// of the workspace, which takes long.
func (e *Environment) writeRecord(ctx context.Context) error {
	if e.origin.kept {
		if err := e.leaveBaseline(ctx); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	return e.beginRecord(ctx)
}

// leaveBaseline stores the baseline in the sandbox. The caller must call remember afterwards.
func (e *Environment) leaveBaseline(ctx context.Context) error {
	return e.base.use(ctx, func() error {
		return archive.Pipe(
			func(w io.Writer) error { return e.base.pack(ctx, e.cfg.ignorePatterns(), w) },
			func(r io.Reader) error { return e.writeBaseline(ctx, r) },
		)
	})
}

// writeBaseline writes the state that changes are counted from into the sandbox.
func (e *Environment) writeBaseline(ctx context.Context, packed io.Reader) error {
	sum := sha256.New()
	err := e.prim.WriteFile(ctx, path.Join(e.prim.Paths().App, baselineFile), io.TeeReader(packed, sum), private())
	if err != nil {
		return fmt.Errorf("leave the workspace's state in the sandbox: %w", err)
	}
	e.origin.baseline = hex.EncodeToString(sum.Sum(nil))
	return nil
}

// private returns the options for files that other users must not read.
func private() primitives.WriteOptions { return primitives.WriteOptions{Mode: 0o600} }

// writeNote writes the note in the sandbox.
func (e *Environment) writeNote(ctx context.Context) error {
	data, err := json.Marshal(e.ownNote())
	if err != nil {
		return err
	}
	if err := e.prim.WriteFile(ctx, path.Join(e.prim.Paths().App, noteFile), bytes.NewReader(data), private()); err != nil {
		return fmt.Errorf("leave a record in the sandbox: %w", err)
	}
	return nil
}

func (e *Environment) ownNote() note {
	return note{SessionID: e.cfg.SessionID, IgnoreChanges: e.cfg.IgnoreChanges}
}

// firstRecord returns what this machine remembers of a new sandbox.
func (c Config) firstRecord(p primitives.EnvironmentPrimitive, isKept bool) kept.Record {
	return kept.Record{Type: c.Sandbox.Type, ID: p.ID(), Agent: c.Agent.Name, Kept: isKept}
}

// beginRecord stores what the next program needs, in the sandbox and on this machine. It replaces the record of an earlier
// sandbox with the same ID.
func (e *Environment) beginRecord(ctx context.Context) error {
	if err := e.writeNote(ctx); err != nil {
		return err
	}
	e.remember(e.origin.log.Begin)
	return nil
}

// remember stores on this machine what the sandbox was made with, for the next program. It leaves out Agent.Env, which may
// hold secrets. It has the whole profile, so a profile should name variables instead of secrets.
func (e *Environment) remember(store func(func(*kept.Record)) error) {
	agent := e.queries.Request().Agent
	agent.Env = nil
	k := madeRecord{note: e.ownNote(), Agent: agent, Profile: &e.cfg.Profile, Folders: e.origin.folders, Baseline: e.origin.baseline, Gateway: e.gate.At, Network: e.cfg.Sandbox.Network}
	e.mu.Lock()
	k.AllowHosts = e.hosts
	e.mu.Unlock()
	made, err := json.Marshal(k)
	if err == nil {
		err = store(func(r *kept.Record) { r.Made, r.Agent = made, cmp.Or(agent.Name, r.Agent) })
	}
	if err != nil && e.origin.kept {
		e.cfg.tell(fmt.Sprintf("name the agent when you attach to %s: this machine cannot remember it: %v", e.ID(), err))
	}
}

// rememberAgent records the agent that was just prepared in a kept sandbox, if it is the first
// agent or differs from the recorded one.
func (e *Environment) rememberAgent() {
	if !e.origin.agentless && e.origin.before == nil || e.cfg.Agent.Name == "" {
		return
	}
	e.origin.agentless, e.origin.before = false, nil
	e.remember(e.origin.log.Change)
}

// readRecord fills in what cfg leaves open: from this machine's record if the sandbox's note
// names the same session, else only from the note. It sets from.unknown if the record cannot be
// used. What limits the sandbox counts in any case: the sandbox can change its note.
func readRecord(ctx context.Context, p primitives.EnvironmentPrimitive, cfg Config, from *origin) (Config, error) {
	k, err := from.recall(cfg.firstRecord(p, true))
	if err != nil {
		return cfg, err
	}
	if k != nil {
		if k.Network == "none" { // otherwise nothing depends on it
			cfg.Sandbox.Network = k.Network
		}
		if cfg.Sandbox.AllowHosts == nil {
			cfg.Sandbox.AllowHosts = k.AllowHosts
		}
	}
	n, err := readNote(ctx, p)
	switch {
	case err != nil:
		return cfg, err
	case from.unknown != nil:
	case n == nil && k == nil: // no environment has made the sandbox
	case k == nil:
		from.unknown = errors.New("this machine does not remember the sandbox, which another machine or user has made")
	case n == nil, k.SessionID != n.SessionID:
		from.unknown = errors.New("the sandbox is not the one that this machine remembers, or the note of its session was changed in it")
	default:
		n, cfg = &k.note, from.use(k, cfg)
	}
	if n != nil {
		cfg.SessionID = cmp.Or(cfg.SessionID, n.SessionID)
		if cfg.IgnoreChanges == nil {
			cfg.IgnoreChanges = n.IgnoreChanges
		}
	}
	return cfg, nil
}

// readNote reads the note in a sandbox; nil if there is none.
func readNote(ctx context.Context, p primitives.EnvironmentPrimitive) (*note, error) {
	name := path.Join(p.Paths().App, noteFile)
	data, err := primitives.ReadFile(ctx, p, name, maxNote)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the note in the sandbox: %w", err)
	}
	n := new(note)
	if err = json.Unmarshal(data, n); err == nil && !sessionPattern.MatchString(n.SessionID) {
		err = errors.New("its session_id cannot be that of a session")
	}
	if err != nil {
		return nil, fmt.Errorf("the note of the session in the sandbox is damaged: %w; delete %s in it and name its agent, or end the sandbox with Remove", err, name)
	}
	return n, nil
}

// recall reads this machine's record of a sandbox; nil if there is none. It sets o.unknown if
// records cannot be read at all.
func (o *origin) recall(first kept.Record) (*madeRecord, error) {
	var r *kept.Record
	var err error
	o.log, r, err = kept.Resume(first)
	k := new(madeRecord)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err == nil:
		o.used = r.Used
		if r.Made == nil {
			return nil, nil
		}
		if err = json.Unmarshal(r.Made, k); err == nil {
			return k, nil
		}
		err = fmt.Errorf("its entry \"made\" %w: %w", kept.ErrDamaged, err)
	case !errors.Is(err, kept.ErrDamaged):
		o.unknown = fmt.Errorf("what this machine remembers of the sandbox cannot be used: %w", err)
		return nil, nil
	}
	return nil, fmt.Errorf("what this machine remembers of the sandbox, such as the network that it may reach, cannot be read: %w; end the sandbox with Remove", err)
}

// use takes from the record of the same sandbox what cfg leaves open.
func (o *origin) use(k *madeRecord, cfg Config) Config {
	o.baseline, o.agentless, o.folders, o.gateway = k.Baseline, k.Agent.Name == "", k.Folders, k.Gateway
	if cfg.Agent.Name == "" {
		env := cfg.Agent.Env
		cfg.Agent = k.Agent
		cfg.Agent.Env = env
		if k.Profile != nil && reflect.ValueOf(cfg.Profile).IsZero() {
			cfg.Profile = *k.Profile
		}
	}
	if k.Agent.Name != "" && k.Agent.Name != cfg.Agent.Name {
		o.before = &k.Agent
	}
	return cfg
}

// checkAgent returns an error if a script of envrunner would run without an agent. It ignores
// what the sandbox says about its agent.
func (e *Environment) checkAgent(script string) error {
	switch {
	case e.cfg.Agent.Name != "" || len(e.cfg.Scripts.byName()[script]) > 0:
		return nil
	case e.origin.unknown != nil:
		return fmt.Errorf("%w: agent: %w; name it in Config.Agent", ErrConfig, e.origin.unknown)
	}
	return fmt.Errorf("%w: agent: no agent is known to have run in %s; name one in Config.Agent", ErrConfig, e.ID())
}

// readFrom reads the workspace as it was when the sandbox was created.
func (b *baseline) readFrom(ctx context.Context, p primitives.EnvironmentPrimitive, from origin) (err error) {
	r, err := p.Open(ctx, path.Join(p.Paths().App, baselineFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the sandbox has no record of its beginning: %w; make it with Keep to compare it with that", errors.ErrUnsupported)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if from.unknown != nil {
		return fmt.Errorf("its own word for its beginning does not count: %w: %w; compare it where it was made", errors.ErrUnsupported, from.unknown)
	}
	sum := sha256.New()
	all := io.TeeReader(r, sum)
	if err := b.found(ctx, all); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(all, maxPadding))
	if err == nil && hex.EncodeToString(sum.Sum(nil)) != from.baseline {
		err = errors.New("its record was changed in the sandbox")
	}
	if err != nil {
		err = errors.Join(err, b.own.Close())
		b.own, b.blobs = nil, nil
	}
	return err
}

// madeRecord is the entry "made" of this machine's record of a sandbox, in a file that nothing in the sandbox can write.
type madeRecord struct {
	note
	Agent   Agent    `json:"agent"`
	Profile *Profile `json:"profile,omitempty"`
	// Folders are the folders of this machine that the workspace began with.
	Folders []Source `json:"folders,omitempty"`
	// Baseline is the SHA-256 of the baseline that is stored in the sandbox; empty for none.
	Baseline string `json:"baseline,omitempty"`
	// Gateway is the gateway that the agent knows, for the next program that serves it. Its
	// token is worthless outside the sandbox.
	Gateway *runnerscripts.Gateway `json:"gateway,omitempty"`
	// Network and AllowHosts say what the sandbox may reach.
	Network    string   `json:"network,omitempty"`
	AllowHosts []string `json:"allow_hosts,omitzero"`
}
