package local

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/proctree"
)

// state is what another program needs to attach. It is stored in the session's folder App, readable
// by its owner only.
type state struct {
	ID      string            `json:"id"`
	Created time.Time         `json:"created"`
	For     string            `json:"for,omitempty"` // Config.Session
	Owner   proctree.Identity `json:"owner"`         // the program that made it
	// OwnerName is Config.Owner.
	OwnerName string `json:"owner_name,omitempty"`
	Boot      string `json:"boot"` // the boot ID of the machine
	Host      string `json:"host,omitempty"`
	PIDs      string `json:"pids,omitempty"` // the PID namespace of the owner
	Group     string `json:"group,omitempty"`
	NoGroup   string `json:"no_group,omitempty"` // why there is no control group

	collector *orphanCollector // of this program; nil if the sandbox has none

	Session string `json:"-"` // where the state was found
	// Workspace is empty if the workspace is below the session folder.
	Workspace string `json:"workspace,omitempty"`
	// Made says that Workspace is no folder of the user: New has made it, or the image had it.
	Made       bool          `json:"made,omitempty"`
	LeaveFiles bool          `json:"leave_files,omitempty"`
	Keep       bool          `json:"keep,omitempty"`
	Grace      time.Duration `json:"grace,omitempty"`   // zero is the default
	Copying    bool          `json:"copying,omitempty"` // Fork has not completed this copy
	Env        []string      `json:"env,omitempty"`
	User       string        `json:"user,omitempty"`
	Runner     string        `json:"runner,omitempty"`
}

const (
	stateFile = "sandbox.json"
	// lifeFile is empty while the sandbox lives. Every handle keeps it open. Its size, which can
	// change even on a full disk, and its removal show all handles what one of them has done. The
	// handles share a lock on it, so that GC can check whether any is open. Its modification time
	// says since when none is, see aloneSince.
	lifeFile   = "life"
	lifeEnding = 1 // its size while a program terminates the sandbox
	lifeEnded  = 2
)

// isEnded reports whether a life file says that the sandbox was terminated.
func isEnded(life fs.FileInfo) bool { return life.Size() > lifeEnding }

// defaultGrace is the default of Config.Grace.
const defaultGrace = time.Minute

// newState returns the state of a sandbox that is made with cfg.
func newState(cfg Config) state {
	return state{
		Workspace: cfg.Workspace, LeaveFiles: cfg.LeaveFiles, Keep: cfg.Keep, Grace: cfg.Grace,
		For: cfg.Session, OwnerName: cfg.Owner, Env: cfg.Env, User: cfg.User, Runner: cfg.Runner, collector: collectorFor(cfg),
	}
}

// grace returns the grace period of the sandbox.
func (st *state) grace() time.Duration { return cmp.Or(st.Grace, defaultGrace) }

// complete reports whether the creation of the sandbox was completed.
func (st *state) complete() bool {
	_, err := os.Lstat(st.file(lifeFile))
	return !errors.Is(err, fs.ErrNotExist)
}

// own makes st the state of a new sandbox that this program owns.
func (st *state) own(id string) {
	st.ID, st.Created = id, time.Now().UTC()
	me := owner.Self()
	st.Owner, st.Boot, st.PIDs, st.Host = proctree.Self(), me.Boot, me.PIDs, me.Host
}

func (st *state) paths() primitives.Paths {
	p := primitives.PathsIn(st.Session)
	if st.Workspace != "" {
		p.Workspace = st.Workspace
	}
	return p
}

func (st *state) file(name string) string { return filepath.Join(st.paths().App, name) }

// save writes a new state, once. The life file comes last: it marks the sandbox as complete.
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
	if !isID(id) {
		return nil, errNoSandbox
	}
	roots := rootFolders(cfg.Root, os.Geteuid())
	var errs []error
	for _, root := range roots {
		st, err := findBelow(root, cfg.Root == "", id)
		if err == nil {
			return st, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		return nil, errNoSandbox
	}
	return nil, fmt.Errorf("no sandbox below %s: %w", strings.Join(roots, " or "), errors.Join(errs...))
}

var errNoSandbox = fmt.Errorf("%w: no sandbox has this ID", fs.ErrNotExist)

func findBelow(root string, isDefault bool, id string) (*state, error) {
	abs, err := filepath.Abs(root)
	if err == nil {
		err = trustRoot(abs, isDefault)
	}
	if err != nil {
		return nil, err
	}
	st := state{Session: filepath.Join(abs, id)}
	if err := st.load(); err != nil {
		return nil, err
	}
	return &st, nil
}

// load reads the state of the session folder. The ID is the name of the folder, whatever the file
// says.
func (st *state) load() error {
	if err := readJSON(st.file(stateFile), st); err != nil {
		return err
	}
	if st.ID != "" {
		st.ID = filepath.Base(st.Session)
	}
	return nil
}

// rootFolders returns where sandboxes of a user may be: the user's own root folder and, for root,
// the one of sandboxes whose commands run as another user.
func rootFolders(root string, euid int) []string {
	if root != "" {
		return []string{root}
	}
	var roots []string
	if root, err := rootFolder(Config{}, identity{}); err == nil {
		roots = append(roots, root)
	}
	if euid == 0 {
		roots = append(roots, systemRoot)
	}
	return roots
}

// writeJSON replaces a file atomically. Only the owner can read the new file.
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

// maxJSON is the largest file that readJSON reads. The arguments and the environment of a command
// need less.
const maxJSON = 64 << 20

// readJSON reads a regular file. Commands of the sandbox may have replaced it: readJSON follows no
// link and never blocks.
func readJSON(name string, v any) error {
	f, err := openRegular(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxJSON+1))
	if err != nil {
		return err
	}
	if len(data) > maxJSON {
		return fmt.Errorf("%s is damaged: it has more than %d bytes", name, maxJSON)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s is damaged: %w", name, err)
	}
	return nil
}

// openRegular opens a file that commands of the sandbox may have replaced. The error is
// fs.ErrInvalid for a link, a pipe and anything else that is not a regular file.
func openRegular(name string, flag int) (*os.File, error) {
	f, err := os.OpenFile(name, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	replaced := errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO)
	if err != nil && !replaced {
		return nil, err
	}
	if !replaced {
		info, err := f.Stat()
		if err == nil && info.Mode().IsRegular() {
			return f, nil
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: %s is not a regular file", fs.ErrInvalid, name)
}

func ownedByMe(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}
