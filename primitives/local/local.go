// Package local is the sandbox that is a folder and a set of processes on the
// machine this program runs on. It is also the engine: inside remote sandboxes
// the guest serves this very package.
//
// It keeps things apart, it does not lock anything in: commands run as this
// program's user, or as Config.User, and can reach whatever that user can. Use a
// container for what is not trusted.
//
// A command inherits its three streams and no other descriptor of this program. To
// make sure of that each start of a command marks all descriptors above 2 as
// close-on-exec. A program that hands descriptors on when it starts programs of its
// own names them in os/exec's ExtraFiles, or clears the mark right before it calls
// syscall.Exec.
//
// A program that has made a sandbox has a child process, agentenv-collector, until it
// ends: that is the program itself, started once more. When the program has died, killed
// or not, the collector process ends its orphaned commands, removes the
// files that it was writing and, after [Config].Grace, terminates those of its
// sandboxes that are not kept. A sandbox that another program is attached to lives
// on; its grace begins when the last such program closes its handle, or dies. If
// the collector process was killed, too, that of the next program collects its orphans.
//
// Where to look, by file:
//
//	local, adopt, fork, provider     make, attach to and copy sandboxes; Provider
//	sandbox, state, list             a handle; what is stored of a sandbox; all of them
//	exec, lookup, env, user          run a command: its program, its variables (the allow-list), its user
//	spawn, process, stream, tty      start and follow a process; pipes, terminals
//	run, status, oom                 Run, for short commands; exit statuses; kills for want of memory
//	durable, supervise, spool, tail  commands that outlive the program, and their output
//	ladder, terminate, reap          end commands and sandboxes; reap processes that lost their parent
//	collector, collection, gc        the collector process; orphans of dead programs
//	files, folder                    Files; a folder of this machine that takes files of a sandbox
//	forward, usage                   Listen and Dial; memory, processors, processes
//
// internal/beneath confines paths to the workspace (ErrPathEscape), internal/files is the file
// half, internal/watch reports changes, internal/cgroup and internal/proctree find the processes.
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

// Config says how to make a sandbox. The zero value is a fresh, empty one that
// vanishes with Terminate.
type Config struct {
	// Root is the folder in which the session folder is made; it is made if
	// missing, for this user only. Empty means agentenv/local in the user's
	// cache directory or, if commands run as another user, who could not enter
	// that, /var/lib/agentenv. Then it must belong to this program's user, and
	// no other user may write to it: else the error is fs.ErrPermission.
	Root string
	// Workspace is an existing folder to work in instead of a new one. It is
	// used in place and never deleted.
	Workspace string
	// LeaveFiles leaves the session folder on disk after Terminate, where something else
	// removes it: for a guest, whose files go with its container.
	LeaveFiles bool
	// Keep lets the sandbox outlive this program, without a limit of time.
	Keep bool
	// Grace is for how long the sandbox lives on, without Keep, when this program has
	// ended and no other one is attached any more. Zero means a minute.
	Grace time.Duration
	// Session is the conversation that the sandbox is for, for people: [primitives.Info] has it.
	Session string
	// Owner is what [primitives.Info].Owner says, where this program only serves the sandbox
	// for another one. Empty means this program.
	Owner string
	// Env is added to the environment of every command, entries and their
	// meaning as in primitives.Command.Env.
	Env []string
	// User is whom commands run as that name no user themselves, as in
	// primitives.Command.User; new files are given to that user. Empty means
	// this program's user. Another one needs root.
	User string
	// Runner is the path of a program that supervises durable commands: called
	// with the arguments "supervise" and a folder it must call [Supervise].
	// Empty means that there are none.
	Runner string
	// ReapOrphans makes this program adopt and reap the processes that lose
	// their parent, so that none escapes. It changes the whole program: for
	// one that does nothing but serve this sandbox, like the guest. So it also
	// offers its commands to the kernel to be killed before it when memory runs out,
	// and starts no collector process: the container that it serves ends with it.
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

// New makes a sandbox. ctx covers the making only.
//
// Errors: [primitives.ErrUnknownUser] and fs.ErrPermission for Config.User,
// fs.ErrNotExist or [primitives.ErrNotDirectory] for Config.Workspace, fs.ErrInvalid for a bad
// Config.Env, and those of making folders.
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

// unmake takes away what New made before it failed.
func unmake(st *state) error {
	var err error
	if st.Group != "" {
		err = cgroup.Remove(st.Group)
	}
	err = errors.Join(err, files.RemoveTree(st.Session))
	st.collector.tell(sandboxGone, st.Session)
	return err
}

// groupPrefix begins the names of control groups.
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

// Attach returns the sandbox with this ID below cfg.Root, also one that another
// program made. While that program lives both share the sandbox. When it has
// died, what it had running is ended first, except for durable commands and what
// they started. Of cfg only Root, Runner and ReapOrphans count; empty ones mean
// what the sandbox was made with.
//
// An ID that never existed or whose sandbox was removed is fs.ErrNotExist; one
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

// systemRoot is where root's sandboxes of other users are. No other user can make it first,
// as in a directory for temporary files.
const systemRoot = "/var/lib/agentenv"

// rootFolder returns where sessions live.
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

// trustRoot refuses a default root that another user could have made, or could replace. It
// must be called before anything below the root is read.
func trustRoot(root string, isDefault bool) error {
	if !isDefault {
		return nil
	}
	around, err := os.Stat(filepath.Dir(root)) // it may be a link of the user's own
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
	if st.Workspace != "" {
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
	// Only root can run commands as others, and only for those are the folders
	// open; the root folder is not.
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
			// Not before there is something by which GC finds it.
			var err error
			if st.Group, err = makeGroup(st.ID); err != nil {
				st.NoGroup = err.Error()
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

// wrap says where an error came from.
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
