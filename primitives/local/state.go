package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// state is what another program must know to attach. It is kept in the session's
// folder App, readable by its owner only.
type state struct {
	ID      string            `json:"id"`
	Created time.Time         `json:"created"`
	Owner   proctree.Identity `json:"owner"` // the program that made it
	Boot    string            `json:"boot"`  // and when the machine was started
	Host    string            `json:"host,omitempty"`
	PIDs    string            `json:"pids,omitempty"` // within which the owner's number counts
	Group   string            `json:"group,omitempty"`
	NoGroup string            `json:"no_group,omitempty"` // why there is none

	Session   string   `json:"-"` // where the state was found
	Workspace string   `json:"workspace,omitempty"`
	Keep      bool     `json:"keep,omitempty"`
	Stay      bool     `json:"stay,omitempty"`
	Copying   bool     `json:"copying,omitempty"` // it is a copy that is still being made
	Env       []string `json:"env,omitempty"`
	User      string   `json:"user,omitempty"`
	Runner    string   `json:"runner,omitempty"`
}

const (
	stateFile = "sandbox.json"
	// lifeFile is empty as long as the sandbox lives, and has a part of what will be
	// in it while somebody terminates it. Every handle keeps it open: that it was
	// written to or removed tells all of them, whoever did it. They share a lock on
	// it, so that it can be known whether there are any.
	lifeFile = "life"
	ending   = "t"
	ended    = "terminated\n"
)

// isEnded reports whether a life file says that the sandbox was terminated.
func isEnded(life fs.FileInfo) bool { return life.Size() > int64(len(ending)) }

// own makes it a new sandbox of this program.
func (st *state) own(id string) {
	st.ID, st.Created = id, time.Now().UTC()
	st.Owner, st.Boot, st.PIDs = proctree.Self(), proctree.BootID(), pidNamespace()
	st.Host, _ = os.Hostname() // empty is unknown
}

func (st *state) paths() primitives.Paths {
	p := primitives.PathsIn(st.Session)
	if st.Workspace != "" {
		p.Workspace = st.Workspace
	}
	return p
}

func (st *state) file(name string) string { return filepath.Join(st.paths().App, name) }

// save writes a new state, once. The life file comes last: what has one is
// complete.
func (st *state) save() error {
	data, err := json.Marshal(st)
	if err != nil {
		return err
	}
	if err := os.WriteFile(st.file(stateFile), data, 0o600); err != nil {
		return err
	}
	return os.WriteFile(st.file(lifeFile), nil, 0o600)
}

// find reads the state of an existing sandbox.
func find(cfg Config, id string) (*state, error) {
	if id == "" || strings.ContainsAny(id, "/\x00") || id[0] == '.' {
		return nil, fmt.Errorf("%w: this is not the id of a local sandbox", fs.ErrNotExist)
	}
	roots := rootFolders(cfg, os.Geteuid())
	var st state
	var errs []error
	for _, root := range roots {
		abs, err := filepath.Abs(root)
		if err != nil {
			return nil, err
		}
		session := filepath.Join(abs, id)
		err = readJSON(filepath.Join(primitives.PathsIn(session).App, stateFile), &st)
		if err == nil {
			st.Session = session
			return &st, trustRoot(abs, cfg.Root == "")
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no sandbox below %s: %w", strings.Join(roots, " or "), errors.Join(errs...))
}

// rootFolders returns where sandboxes of a user may have been made: the one of the
// user's own and, for root, the one of those that run as another user.
func rootFolders(cfg Config, euid int) []string {
	if cfg.Root != "" {
		return []string{cfg.Root}
	}
	makers := []identity{{}}
	if euid == 0 {
		makers = append(makers, identity{cred: &syscall.Credential{}})
	}
	var roots []string
	for _, who := range makers {
		if root, err := rootFolder(cfg, who); err == nil {
			roots = append(roots, root)
		}
	}
	return roots
}

// writeJSON replaces a file at once, readable by its owner only.
func writeJSON(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

func readJSON(name string, v any) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s is damaged: %w", name, err)
	}
	return nil
}

func ownedByMe(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}
