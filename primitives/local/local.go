// Package local implements a sandbox as a folder and a set of processes on the machine that this
// program runs on. It is also the engine of remote sandboxes: there the guest serves this package.
//
// It separates sandboxes but does not confine them: commands run as this program's user, or as
// Config.User, and can reach whatever that user can. Use a container for untrusted commands.
//
// A command inherits its three streams and no other descriptor of this program. To ensure that,
// each start of a command marks all descriptors above 2 as close-on-exec. A program that passes
// descriptors to programs that it starts itself must name them in os/exec's ExtraFiles, or clear
// the mark right before it calls syscall.Exec.
//
// A program that has made a sandbox has a child process, agentenv-collector, until it ends. The
// child runs the program's own executable. When the program has died, from any cause, the collector
// process ends its orphaned commands, removes the files that it was writing and, after
// [Config].Grace, terminates those of its sandboxes that are not kept. A sandbox that another
// program is attached to lives on: its grace period begins when the last such program closes its
// handle or dies. If the collector process was killed, too, the collector process of the next
// program collects the orphans.
//
// Where to look, by file:
//
//	local, adopt, fork, provider     make, attach to and copy sandboxes; Provider
//	workspace                        where a new workspace is
//	sandbox, state, list             a handle; what is stored of a sandbox; all sandboxes
//	exec, lookup, env, user          run a command: its program, its variables (the allow-list), its user
//	spawn, process, stream, tty      start and follow a process; pipes, terminals
//	run, status, oom                 Run, for short commands; exit statuses; OOM kills
//	durable, supervise, spool, tail  commands that outlive the program, and their output
//	ladder, terminate, reap, orphans end commands and sandboxes; reap orphaned processes
//	collector, collection, gc        the collector process; orphans of dead programs
//	files, folder                    Files; a folder of this machine for files of a sandbox
//	forward, usage                   Listen and Dial; memory, processors, processes
//
// internal/beneath confines paths to the workspace (ErrPathEscape), internal/files implements
// Files, internal/watch reports changes, internal/cgroup and internal/proctree find the processes.
//
// Linux is fully supported. On macOS it works without durable commands and without a
// collector process, and ends process groups instead of whole trees; Capabilities say so.
package local

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/cgroup"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/files"
)

const backend = "local"

// Config configures a sandbox. The zero value makes a new, empty sandbox that Terminate removes.
type Config struct {
	// Root is the folder that holds the session folder. New makes it if missing, readable for this
	// user only. Empty means agentenv/local in the user's cache directory or, if commands run as
	// another user, who could not enter that directory, /var/lib/agentenv. Such a default root must
	// belong to this program's user, and no other user may write to it: else the error is
	// fs.ErrPermission.
	Root string
	// Workspace is an existing folder to use as the workspace instead of a new one. It is used in
	// place and never deleted.
	Workspace string
	// WorkspacePath is the absolute path of a new workspace. Empty means a folder of the session folder or,
	// with Session, a folder with the sandbox's ID in the folder "workspaces" of Root. The next sandbox of a
	// conversation can have the path of the last one, after that has ended: the folder must not exist, and
	// Terminate removes it. So a path outside of "workspaces" is errors.ErrUnsupported, except with
	// LeaveFiles: then New uses the folder with the files in it, and makes it if it is missing.
	WorkspacePath string
	// LeaveFiles keeps the session folder on disk after Terminate. It is for a guest, whose files
	// are removed with its container.
	LeaveFiles bool
	// Keep lets the sandbox outlive this program without a time limit.
	Keep bool
	// Grace is how long a sandbox without Keep lives on after this program has ended and while no
	// other program is attached. Zero means a minute.
	Grace time.Duration
	// Session names the conversation that the sandbox is for. [primitives.Info] shows it to people.
	Session string
	// Owner is the value of [primitives.Info].Owner. Set it if this program serves the sandbox for
	// another program. Empty means this program.
	Owner string
	// Env is added to the environment of every command. Its entries mean what they mean in
	// primitives.Command.Env.
	Env []string
	// User is the user of commands that name none themselves, as in primitives.Command.User. New
	// files belong to that user. Empty means this program's user. Another user needs root.
	User string
	// Runner is the path of a program that supervises durable commands. Called with the arguments
	// "supervise" and a folder, it must call [Supervise]. Empty means no durable commands.
	Runner string
	// ReapOrphans makes this program adopt and reap orphaned processes, so that none escapes. It
	// changes the whole program: set it only in a program that does nothing but serve this sandbox,
	// like the guest. Such a program also lets the kernel kill commands before itself when memory
	// runs out, and starts no collector process, because the container that it serves ends with it.
	ReapOrphans bool
	// Logger takes diagnostics; nil means silence.
	Logger hclog.Logger
}

// logOf returns the logger of one sandbox; never nil.
func (c Config) logOf(id string) hclog.Logger {
	if c.Logger == nil {
		return hclog.NewNullLogger()
	}
	return c.Logger.With("sandbox", id, "type", backend)
}

// New makes a sandbox. ctx applies to the creation only.
//
// Errors: [primitives.ErrUnknownUser] and fs.ErrPermission for Config.User,
// fs.ErrNotExist or [primitives.ErrNotDirectory] for Config.Workspace, fs.ErrExist and
// errors.ErrUnsupported for Config.WorkspacePath, fs.ErrInvalid for a bad Config.Env, and those of
// making folders.
func New(ctx context.Context, cfg Config) (*Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, wrap("create", "", err)
	}
	st := newState(cfg)
	st.own(newID())
	root, who, err := prepare(cfg)
	if err != nil {
		return nil, wrap("create", cfg.Root, err)
	}
	st.Session = filepath.Join(root, st.ID)
	if err := st.chooseWorkspace(cfg.WorkspacePath); err != nil {
		return nil, wrap("create", cfg.WorkspacePath, err)
	}
	st.collector.tell(handleOpened, st.Session)
	if err := makeFolders(&st, who); err != nil {
		return nil, wrap("create", st.Session, errors.Join(err, unmake(&st)))
	}
	s, err := open(ctx, &st, who, cfg.ReapOrphans)
	if err == nil && who.cred != nil {
		if err = s.probeDir(&spawnSpec{dir: s.paths.Workspace, cred: who.cred}); err != nil {
			err = errors.Join(fmt.Errorf("%w; set Root to a folder that user %s may enter", err, cfg.User), s.Close())
		}
	}
	if err != nil {
		return nil, wrap("create", st.Session, errors.Join(err, unmake(&st)))
	}
	if st.NoGroup != "" {
		cfg.logOf(s.ID()).Debug("processes are found without a control group", "why", st.NoGroup)
	}
	return s, nil
}

// unmake removes what New made before it failed.
func unmake(st *state) error {
	var err error
	if st.Group != "" {
		err = cgroup.Remove(st.Group)
	}
	err = errors.Join(err, st.removeWorkspace(), files.RemoveTree(st.Session))
	st.collector.tell(sandboxGone, st.Session)
	return err
}

// groupPrefix is the prefix of the names of control groups.
const groupPrefix = "agentenv-"

// makeGroup makes the control group of a new sandbox.
func makeGroup(id string) (string, error) {
	parent, err := cgroup.Parent()
	if err != nil {
		return "", err
	}
	group, err := cgroup.Open(filepath.Join(parent, groupPrefix+id), "")
	if err != nil {
		return "", err
	}
	return group.Path(), nil
}

// Attach returns a handle of the sandbox with this ID below cfg.Root, which another program may
// have made. While that program lives both share the sandbox. If it has died, Attach first ends the
// commands that it left running, except for durable commands and their descendants. Attach uses
// only Root, Runner and ReapOrphans of cfg. An empty Runner means the one that the sandbox was made
// with.
//
// An ID that never existed or whose sandbox was removed is fs.ErrNotExist. A terminated sandbox
// whose folder was kept is [primitives.ErrTerminated].
func Attach(ctx context.Context, cfg Config, id string) (*Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, wrap("attach", id, err)
	}
	st, err := find(cfg, id)
	if err != nil {
		return nil, wrap("attach", id, err)
	}
	if cfg.Runner != "" {
		st.Runner = cfg.Runner
	}
	st.collector = collectorFor(cfg)
	who, err := sandboxUser(st.User)
	if err != nil {
		return nil, wrap("attach", id, err)
	}
	st.collector.tell(handleOpened, st.Session)
	s, err := open(ctx, st, who, cfg.ReapOrphans)
	if err != nil {
		st.collector.tell(handleClosed, st.Session)
		return nil, wrap("attach", id, err)
	}
	endAbandoned(st)
	return s, nil
}

// prepare checks the configuration and makes the root folder.
func prepare(cfg Config) (root string, who identity, err error) {
	if who, err = sandboxUser(cfg.User); err != nil {
		return "", who, err
	}
	if err := (primitives.Command{Args: []string{"env"}, Env: cfg.Env}).Check(); err != nil {
		return "", who, fmt.Errorf("config: %w", err)
	}
	if cfg.Grace < 0 {
		return "", who, fmt.Errorf("config: %w: grace: %v is negative; give a positive duration such as 2m, or set keep", fs.ErrInvalid, cfg.Grace)
	}
	if root, err = rootFolder(cfg, who); err != nil {
		return "", who, err
	}
	outer, mode := fs.FileMode(0o700), fs.FileMode(0o700)
	if who.cred != nil {
		outer, mode = 0o755, 0o711
	}
	if err := os.MkdirAll(filepath.Dir(root), outer); err != nil {
		return "", who, err
	}
	if err := os.Mkdir(root, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", who, err
	}
	return root, who, trustRoot(root, cfg.Root == "")
}

// systemRoot is the root folder of sandboxes that root makes for other users. No other user can
// make it first, as they could in a directory for temporary files.
const systemRoot = "/var/lib/agentenv"

// rootFolder returns the folder that holds the session folders.
func rootFolder(cfg Config, who identity) (string, error) {
	switch {
	case cfg.Root != "":
		return filepath.Abs(cfg.Root)
	case who.cred != nil:
		return systemRoot, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("this user has no cache directory: %w; set Root", err)
	}
	return filepath.Join(cache, "agentenv", "local"), nil
}

// trustRoot refuses a default root that another user could have made, or could replace. Call it
// before reading anything below the root.
func trustRoot(root string, isDefault bool) error {
	if !isDefault {
		return nil
	}
	around, err := os.Stat(filepath.Dir(root)) // the parent may be a link of the user
	if err == nil {
		err = trustFolder(filepath.Dir(root), around)
	}
	if err != nil {
		return err
	}
	info, err := os.Lstat(root)
	if err != nil {
		return err
	}
	return trustFolder(root, info)
}

func trustFolder(name string, info fs.FileInfo) error {
	var why string
	switch {
	case !info.IsDir():
		why = "it is not a folder"
	case !ownedByMe(info):
		why = "it belongs to another user"
	case info.Mode().Perm()&0o022 != 0:
		why = "other users may write to it"
	default:
		return nil
	}
	return fmt.Errorf("%w: no sandboxes are kept in %s, because %s; remove it, or set root to another folder", fs.ErrPermission, name, why)
}

// sandboxUser resolves Config.User.
func sandboxUser(name string) (identity, error) {
	if name == "" {
		return identity{}, nil
	}
	return resolveUser(name)
}

// makeFolders makes the session's folders and its state.
func makeFolders(st *state, who identity) error {
	unlock, err := lockRoot(filepath.Dir(st.Session))
	if err != nil {
		return err
	}
	defer unlock()
	if st.Workspace != "" && !st.Made {
		abs, err := filepath.Abs(st.Workspace)
		if err != nil {
			return err
		}
		info, err := os.Stat(abs)
		if err != nil {
			return fmt.Errorf("config: workspace: %w", err)
		}
		if !info.IsDir() {
			return fmt.Errorf("config: workspace %s: %w", abs, primitives.ErrNotDirectory)
		}
		st.Workspace = abs
	}
	// Only root can run commands as other users, so other users may enter the folders only if this
	// program is root. The root folder has a mode of its own, see prepare.
	outer, inner := fs.FileMode(0o700), fs.FileMode(0o700)
	if os.Geteuid() == 0 {
		outer, inner = 0o711, 0o755
	}
	paths := primitives.PathsIn(st.Session)
	for _, dir := range paths.All() {
		mode := inner
		if dir == paths.Session {
			mode = outer
		}
		if dir == paths.Workspace && st.Workspace != "" {
			continue
		}
		if err := os.Mkdir(dir, mode); err != nil {
			return err
		}
		if dir == paths.Session {
			// GC finds the group by the session folder, so the folder must exist first.
			var err error
			if st.Group, err = makeGroup(st.ID); err != nil {
				st.NoGroup = err.Error()
			}
		}
		if dir == paths.App && st.Made {
			// GC finds the workspace by the state.
			err := writeJSON(st.file(stateFile), st)
			if err == nil {
				err = st.makeWorkspace(who, inner)
			}
			if err != nil {
				return err
			}
		}
		if who.cred != nil && dir != paths.Session && dir != paths.App {
			if err := os.Chown(dir, int(who.cred.Uid), int(who.cred.Gid)); err != nil {
				return err
			}
		}
	}
	return st.save()
}

func newID() string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // never fails
	return strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
}

// wrap adds the operation and the target to an error.
func wrap(op, target string, err error) error {
	if err == nil {
		return nil
	}
	var e *primitives.Error
	if errors.As(err, &e) && e.Backend == backend && e.Op == op {
		return err
	}
	return &primitives.Error{Op: op, Backend: backend, Target: target, Err: err}
}
