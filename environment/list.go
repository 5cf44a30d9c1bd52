package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/internal/flock"
	program "github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/internal/statedir"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// SandboxInfo describes a sandbox that can be attached to.
type SandboxInfo struct {
	ID      string            `json:"id"`
	Type    string            `json:"type"`
	Status  primitives.Status `json:"status"`
	Created time.Time         `json:"created"`
	// InUse means that its owner still runs.
	InUse bool `json:"in_use"`
	// Owner is the owner, as host:pid, for people; empty if unknown.
	Owner string `json:"owner,omitempty"`
	// Image is the image that a container, or a sandbox at Modal, was created from; empty for
	// other types.
	Image string `json:"image,omitempty"`
	// Name is [Config].Name, or its name at Modal; empty for none.
	Name string `json:"name,omitempty"`
	// Kept means that it outlives its owner.
	Kept bool `json:"kept"`
	// Orphan means that its owner has died and it was not created with Keep: [GC] removes it.
	Orphan bool `json:"orphan,omitempty"`
	// OrphanSince is when its owner was found dead; zero if that is not known.
	OrphanSince time.Time `json:"orphan_since,omitzero"`
	// Ending means that a program is ending it.
	Ending bool `json:"ending,omitempty"`
	// GuestVersion is the version of the guest protocol that it was created with, which may
	// differ from this release's. Zero means that it is unknown, or that it needs none.
	GuestVersion int `json:"guest_version,omitempty"`
	// SessionID is the conversation that it was created for, if the type stores it.
	SessionID string `json:"session_id,omitempty"`
	// Agent is the agent that was chosen for it; empty for none. Agent, Usage and the times of
	// queries are known only to the user and machine that created the sandbox.
	Agent string `json:"agent,omitempty"`
	// QueryBegan and QueryEnded are when the latest query of [Environment.ExecuteQuery] began
	// and ended; zero means not yet. The end of a query whose program was killed is unknown, see
	// [Environment.Working].
	QueryBegan time.Time `json:"query_began,omitzero"`
	QueryEnded time.Time `json:"query_ended,omitzero"`
	// QueryBy is the program of the latest query, as host:pid, for people. QueryOwned means that it
	// is alive, and QueryLost that it died before the query ended: in a kept sandbox the query may
	// go on, see [Environment.Working]. Neither is set if this machine cannot know.
	QueryBy    string `json:"query_by,omitempty"`
	QueryOwned bool   `json:"query_owned,omitempty"`
	QueryLost  bool   `json:"query_lost,omitempty"`
	// Waiting are the permission requests of the query that wait for an answer, as the program of
	// the query has seen them; see [Environment.Waiting] for a query without one.
	Waiting []Waiting `json:"waiting,omitempty"`
	// Usage is what its queries have used of models: as the agent reported it, or else as the
	// gateway counted it.
	Usage runnerscripts.Usage `json:"usage,omitzero"`
}

// List returns the sandboxes of a type that this user created and that still live, oldest first.
// If some cannot be listed, List returns the others together with the error.
func List(ctx context.Context, s Sandbox) ([]SandboxInfo, error) {
	p, err := s.provider(Config{})
	if err != nil {
		return nil, err
	}
	found, err := p.List(ctx)
	list := make([]SandboxInfo, 0, len(found))
	for _, f := range found {
		list = append(list, SandboxInfo{
			ID: f.ID, Type: s.Type, Status: f.Status, Created: f.Created, InUse: f.Owned,
			Image: f.Image, Name: f.Name, Kept: f.Kept, Orphan: f.Orphan, GuestVersion: f.GuestVersion,
			SessionID: f.Session, OrphanSince: f.OrphanSince, Owner: f.Owner,
		})
	}
	if err != nil {
		err = fmt.Errorf("list the sandboxes: %w", err)
	}
	describeActivity(list)
	return list, err
}

// GCOptions configures [GC]. The zero value is always safe.
type GCOptions struct {
	primitives.GCOptions
	// Logger receives a record for each thing that was found or removed; nil discards them.
	Logger hclog.Logger
}

// Garbage is something that [GC] removed or would remove.
type Garbage struct {
	Type string `json:"type"` // of the sandbox, as in [Sandbox]
	primitives.Garbage
}

// GC removes orphans: sandboxes that cannot be used, and sandboxes that are not kept and have no
// client. It never removes a sandbox whose owner lives, that has a client, or that was created
// with Keep and has not expired.
//
// If GC cannot remove something it continues, and returns what it removed together with the
// error.
func GC(ctx context.Context, s Sandbox, opts GCOptions) ([]Garbage, error) {
	p, err := s.provider(Config{})
	if err != nil {
		return nil, err
	}
	c, ok := p.(primitives.Collector)
	if !ok {
		return nil, nil // sandboxes of this type end by themselves
	}
	found, err := c.GC(ctx, opts.GCOptions)
	removed := make([]Garbage, 0, len(found))
	log := Config{Logger: opts.Logger}.SafeLogger().With(eventlog.Type, s.Type)
	for _, r := range found {
		removed = append(removed, Garbage{s.Type, r})
		if !opts.DryRun {
			removeHostRecords(s.Type, r.ID)
		}
		what := "orphan removed"
		if opts.DryRun {
			what = "orphan found"
		}
		log.Info(what, eventlog.Sandbox, r.ID, "kind", r.Kind, "why", r.Why)
	}
	if err != nil {
		log.Warn("orphans cannot be removed", eventlog.Error, err)
		err = fmt.Errorf("remove what is left of sandboxes: %w", err)
	}
	return removed, err
}

// activity is what this machine stores about a sandbox for [List]. Nothing in the sandbox can
// write it, and it grants no permission.
type activity struct {
	Type  string `json:"type"`
	ID    string `json:"id"`
	Name  string `json:"name,omitempty"`
	Agent string `json:"agent,omitempty"`
	Kept  bool   `json:"kept,omitempty"`
	// Began and Ended are those of the latest query, which runs while it has not ended.
	Began time.Time        `json:"began,omitzero"`
	Ended time.Time        `json:"ended,omitzero"`
	By    program.Identity `json:"by,omitzero"` // the program of that query
	// Waiting are the requests of that query that wait for an answer, oldest first.
	Waiting []Waiting           `json:"waiting,omitempty"`
	Usage   runnerscripts.Usage `json:"usage,omitzero"` // of all queries
	// Used is what the gateway has counted.
	Used Used `json:"used,omitzero"`
	// Ending is when a program began to end the sandbox.
	Ending time.Time `json:"ending,omitzero"`
}

// endingLasts is how long a sandbox is shown as ending. Ending may take longer, but then the
// program that ends it has probably died.
const endingLasts = time.Minute

func activityFolder() (*os.Root, error) { return statedir.Open("activity") }

// activityLog stores what happens in one sandbox. What cannot be stored is missing in lists, and
// has no other effect.
type activityLog struct {
	mu  sync.Mutex
	now activity
}

// change updates and stores the activity.
func (l *activityLog) change(f func(*activity)) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.now)
	_ = l.now.save() // errors are ignored, see the type
}

func (a activity) save() (err error) {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	root, err := activityFolder()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	return replaceFile(root, knownName(a.Type, a.ID), data)
}

// replaceFile writes a file of a folder atomically.
func replaceFile(root *os.Root, name string, data []byte) error {
	part := uuid.NewString()
	f, err := root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(part, name)
	}
	if err != nil {
		return errors.Join(err, root.Remove(part))
	}
	return nil
}

// readActivity returns the activity that is stored under a name of the folder.
func readActivity(root *os.Root, name string) (a activity, ok bool) {
	data, err := root.ReadFile(name)
	return a, err == nil && json.Unmarshal(data, &a) == nil
}

// describeActivity adds the stored activity to a list of sandboxes.
func describeActivity(list []SandboxInfo) {
	root, err := activityFolder()
	if err != nil {
		return
	}
	defer func() { _ = root.Close() }() // it was only read
	for i := range list {
		s := &list[i]
		a, ok := readActivity(root, knownName(s.Type, s.ID))
		if !ok {
			continue
		}
		a.describe(s)
		if s.Kept {
			s.Orphan, s.OrphanSince = false, time.Time{}
		}
		s.Ending = !a.Ending.IsZero() && time.Since(a.Ending) < endingLasts && (s.Kept || s.InUse)
	}
}

// describe adds the activity to the description of its sandbox.
func (a activity) describe(s *SandboxInfo) {
	if a.Name != "" {
		s.Name = a.Name
	}
	s.Agent, s.Usage, s.QueryBegan, s.QueryEnded = a.Agent, a.Usage, a.Began, a.Ended
	s.Kept = s.Kept || a.Kept
	if a.By.PID == "" {
		return
	}
	s.QueryBy = a.By.Host + ":" + a.By.PID
	if a.Ended.IsZero() {
		lives := a.By.Liveness()
		s.QueryOwned, s.QueryLost, s.Waiting = lives == program.Alive, lives == program.Dead, a.Waiting
	}
}

// Remembered returns what this machine remembers of a sandbox: its name, its agent and its latest
// query. It asks neither the sandbox nor its backend, so it also works for a sandbox that has just
// ended, and does not say whether it lives: Status is empty. For an unknown sandbox the error is
// fs.ErrNotExist.
func Remembered(typ, id string) (SandboxInfo, error) {
	root, err := activityFolder()
	if err != nil {
		return SandboxInfo{}, err
	}
	defer func() { _ = root.Close() }() // it was only read
	a, ok := readActivity(root, knownName(typ, id))
	if !ok {
		return SandboxInfo{}, fmt.Errorf("%w: this machine remembers nothing of the %s sandbox %s", fs.ErrNotExist, typ, id)
	}
	s := SandboxInfo{ID: id, Type: typ}
	a.describe(&s)
	return s, nil
}

// logActivity begins the activity log of a new sandbox, and names the sandbox if it gets a name.
// The error is [ErrConfig] if another sandbox has the name.
func (e *Environment) logActivity(ctx context.Context) error {
	e.activity = &activityLog{now: activity{
		Type: e.cfg.Sandbox.Type, ID: e.ID(), Agent: e.cfg.Agent.Name, Kept: e.owner.kept,
	}}
	if e.cfg.Name != "" {
		return e.setName(ctx, e.cfg.Name)
	}
	e.activity.change(func(*activity) {})
	if root, err := activityFolder(); err == nil {
		_ = errors.Join(statedir.Prune(root, maxKnown, math.MaxInt64), root.Close()) // the next call tries again
	}
	return nil
}

// recallActivity continues the stored activity of a sandbox.
func (e *Environment) recallActivity() {
	e.activity = &activityLog{now: activity{Type: e.cfg.Sandbox.Type, ID: e.ID(), Agent: e.cfg.Agent.Name, Kept: true}}
	root, err := activityFolder()
	if err != nil {
		return
	}
	defer func() { _ = root.Close() }() // it was only read
	if a, ok := readActivity(root, knownName(e.cfg.Sandbox.Type, e.ID())); ok {
		e.activity.now = a
	}
}

// usedIn returns what the queries in a sandbox have used.
func usedIn(typ, id string) Used {
	root, err := activityFolder()
	if err != nil {
		return Used{}
	}
	defer func() { _ = root.Close() }() // it was only read
	a, _ := readActivity(root, knownName(typ, id))
	return a.Used
}

// namePattern matches the name of a sandbox.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

func checkName(name string) error {
	if name != "" && !namePattern.MatchString(name) {
		return fmt.Errorf("%w: name: %q has other characters than letters, digits, '_', '.' and '-', does not begin with a letter or digit, "+
			"or is longer than 63", ErrConfig, name)
	}
	return nil
}

// setName gives the sandbox a name, unless another sandbox has it. It holds the names lock,
// which all programs of this user share.
func (e *Environment) setName(ctx context.Context, name string) error {
	locks, err := statedir.Open("locks")
	if err != nil {
		return err
	}
	defer func() { _ = locks.Close() }() // nothing was written
	unlock, err := flock.Lock(ctx, filepath.Join(locks.Name(), "names"), nil)
	if err != nil {
		return err
	}
	defer unlock()
	if err := checkNameFree(ctx, name); err != nil {
		return err
	}
	e.activity.mu.Lock()
	defer e.activity.mu.Unlock()
	e.activity.now.Name = name
	return e.activity.now.save()
}

// checkNameFree returns [ErrConfig] if a live sandbox has the name.
func checkNameFree(ctx context.Context, name string) (err error) {
	root, err := activityFolder()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		a, ok := readActivity(root, entry.Name())
		if !ok || a.Name != name {
			continue
		}
		list, err := List(ctx, Sandbox{Type: a.Type})
		if err == nil && !slices.ContainsFunc(list, func(s SandboxInfo) bool { return s.ID == a.ID }) {
			_ = root.Remove(entry.Name()) // if it stays, it belongs to a sandbox that is gone
			continue
		}
		return fmt.Errorf("%w: name: the sandbox %s has the name %q; end it, or choose another name", ErrConfig, a.ID, name)
	}
	return nil
}

// idOf returns the ID of the sandbox with a name; empty if this machine knows none of this type.
func idOf(typ, name string) string {
	root, err := activityFolder()
	if err != nil {
		return ""
	}
	defer func() { _ = root.Close() }() // it was only read
	entries, _ := fs.ReadDir(root.FS(), ".")
	for _, entry := range entries {
		if a, ok := readActivity(root, entry.Name()); ok && a.Type == typ && a.Name == name && name != "" {
			return a.ID
		}
	}
	return ""
}

// markEnding records that a sandbox is about to end.
func markEnding(typ, id string) {
	root, err := activityFolder()
	if err != nil {
		return
	}
	a, ok := readActivity(root, knownName(typ, id))
	_ = root.Close() // it was only read
	if ok {
		a.Ending = now()
		_ = a.save() // after an error, lists show it as running
	}
}
