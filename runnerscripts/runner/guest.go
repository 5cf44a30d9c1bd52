package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// guestFlags are the flags of "envrunner guest".
type guestFlags struct {
	cfg     local.Config
	attach  string
	adopt   string
	name    string
	env     []string
	envFrom []string
	ownEnv  bool
	linger  bool
	ask     bool
	stay    time.Duration
	minAge  time.Duration
	alive   time.Duration
	keeping housekeeping
}

func parseGuestFlags(args []string, stderr io.Writer) (guestFlags, error) {
	var g guestFlags
	fs := flag.NewFlagSet("envrunner guest", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&g.cfg.Root, "root", "", "`folder` in which the session folder is made")
	fs.StringVar(&g.cfg.Workspace, "workspace", "", "existing `folder` to work in, instead of a new one")
	fs.StringVar(&g.cfg.WorkspacePath, "workspace-path", "", "absolute `path` of the new workspace")
	fs.StringVar(&g.cfg.User, "user", "", "`user` whom commands run as")
	fs.BoolVar(&g.cfg.LeaveFiles, "leave-files", false, "leave the session folder when the sandbox ends")
	fs.StringVar(&g.cfg.Session, "session", "", "`conversation` that the sandbox is for, as --list prints it")
	fs.StringVar(&g.cfg.Owner, "owner", "", "`program` that makes the sandbox, as --list prints it; this guest if empty")
	fs.BoolVar(&g.cfg.Keep, "keep", false, "keep the sandbox when this program dies, or is terminated, until it is removed")
	fs.Func("env", "`KEY=value` for every command; may be given often", func(s string) error {
		g.env = append(g.env, s)
		return nil
	})
	fs.BoolVar(&g.ownEnv, "inherit-env", false, "give every command the environment of this program, too, but HOME")
	fs.Func("env-from", "as --env, for each variable of this program that has the `prefix` and a number from 0 on", func(prefix string) error {
		g.envFrom = append(g.envFrom, prefix)
		for i := 0; ; i++ {
			entry := os.Getenv(prefix + strconv.Itoa(i))
			if entry == "" {
				return nil
			}
			g.env = append(g.env, entry)
		}
	})
	fs.StringVar(&g.attach, "attach", "", "`id` of a sandbox below the root to serve, instead of a new one; - is the only one there")
	fs.StringVar(&g.adopt, "adopt", "", "`id` of a session folder below the root to make the sandbox of: its own is no more; - is the only one there, or a new one")
	fs.StringVar(&g.name, "name", "", "`name` of the sandbox of --adopt: if a guest was started in it before, stay as --stay says also without a host")
	fs.BoolVar(&g.linger, "linger", false, "leave the sandbox alive when the host closes the stream, to be attached to")
	fs.BoolVar(&g.ask, "attended", false, "serve nothing: exit with 0 if guests are attached to the sandbox of --attach, and with 1 if not")
	fs.DurationVar(&g.stay, "stay", 0, "after the host has gone stay until no client was attached for so `long`; negative is for ever")
	fs.DurationVar(&g.minAge, "min-age", 0, "stay in any case until the sandbox is so `old`")
	fs.DurationVar(&g.alive, "keep-alive", 0, "`interval` of pings to the host, and how long it may take to answer one; 0 is 30s")
	g.keeping.addFlags(fs)
	if err := fs.Parse(args); err != nil {
		return g, err
	}
	if fs.NArg() > 0 {
		fs.Usage()
		return g, fmt.Errorf("guest takes flags only, not %q", fs.Arg(0))
	}
	if g.ownEnv {
		g.cfg.Env = inherited(os.Environ(), g.envFrom)
	}
	g.cfg.Env = append(append(g.cfg.Env, g.env...), guestVariable+"=1")
	return g, nil
}

// serveGuest serves a sandbox of this machine over standard input and output until the host closes
// the stream. The sandbox ends with the stream, unless flags keep it alive.
func serveGuest(ctx context.Context, stdin io.ReadCloser, stdout, stderr io.Writer, args []string) int {
	g, err := parseGuestFlags(args, stderr)
	if err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK
		}
		fmt.Fprintf(stderr, "envrunner: %v\n", err)
		return exitUsage
	}
	if g.ask {
		if attended, err := g.attended(ctx); err != nil || !attended {
			return exitFailed
		}
		return exitOK
	}
	err = boundFiles()
	switch {
	case err != nil:
	case g.keeping.wanted():
		err = g.keeping.run(ctx, g.cfg, stdout)
	default:
		err = g.serve(ctx, stdin, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintf(stderr, "envrunner guest: %v\n", err)
		_, unmet := errors.AsType[*guest.HandshakeError](err)
		switch {
		case ctx.Err() != nil:
			return exitTerminated
		case unmet:
			return guest.ExitUnmet
		}
		return exitFailed
	}
	return exitOK
}

func (g guestFlags) serve(ctx context.Context, stdin io.ReadCloser, stdout, stderr io.Writer) (err error) {
	small := newMemorySaver()
	// Without the path the guest only lacks durable commands.
	g.cfg.Runner, _ = os.Executable()
	g.cfg.ReapOrphans = true
	sandbox, err := g.open(ctx)
	if err != nil {
		return err
	}
	served := false
	defer func() {
		// With Keep, a signal does not end the sandbox: a machine that shuts down sends one, too.
		left := g.linger || g.cfg.Keep && served && ctx.Err() != nil
		if !left {
			_, terr := sandbox.Terminate(context.WithoutCancel(ctx))
			err = errors.Join(err, terr)
		}
		err = errors.Join(err, sandbox.Close())
	}()
	guests, err := openGuests(sandbox.Paths().App)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, guests.Close()) }()
	if g.attach != "" {
		if err := guests.join(); err != nil {
			return err
		}
	}
	again, since := false, time.Now()
	if g.name != "" {
		if again, since, err = guests.startedAgain(g.name); err != nil {
			return err
		}
	}
	stream, err := stdioStream(stdin, stdout)
	if err != nil {
		return err
	}
	staying, leave := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { small.run(staying) })
	defer func() { leave(); beside.Wait() }()
	// The host connects to the guest meanwhile.
	stocked := make(chan struct{})
	beside.Go(func() { stockThreads(spareThreads); close(stocked) })
	work := func(much bool) { <-stocked; small.work(much) }
	err = guest.Serve(ctx, stream, sandbox, guest.ServeConfig{KeepAlive: g.alive, Work: work})
	_, unmet := errors.AsType[*guest.HandshakeError](err)
	served = !unmet
	if unmet && !again || ctx.Err() != nil || g.stay == 0 {
		return err
	}
	if err != nil {
		fmt.Fprintf(stderr, "envrunner guest: %v\n", err)
	}
	return guests.awaitIdle(ctx, sandbox, g.stay, since.Add(g.minAge))
}

// attended reports whether guests are attached to the sandbox. It does not change the sandbox.
func (g guestFlags) attended(ctx context.Context) (bool, error) {
	id, err := g.only(ctx, g.attach)
	if err != nil || id == "" {
		return false, err
	}
	guests, err := openGuests(primitives.PathsIn(filepath.Join(g.cfg.Root, id)).App)
	if err != nil {
		return false, err
	}
	return guests.any(), guests.Close()
}

// open creates the sandbox, adopts its folder, or attaches to it.
func (g guestFlags) open(ctx context.Context) (*local.Sandbox, error) {
	switch {
	case g.adopt != "":
		id, err := g.folder()
		if err != nil {
			return nil, err
		}
		if id == "" {
			return local.New(ctx, g.cfg)
		}
		return local.Adopt(ctx, g.cfg, id)
	case g.attach == "":
		return local.New(ctx, g.cfg)
	}
	id, err := g.only(ctx, g.attach)
	if err != nil {
		return nil, err
	}
	if id == "" {
		return nil, fmt.Errorf("there is no sandbox below %s", g.cfg.Root)
	}
	return local.Attach(ctx, g.cfg, id)
}

// only returns id or, if that is "-", the id of the only sandbox. It returns "" if there is no
// sandbox.
func (g guestFlags) only(ctx context.Context, id string) (string, error) {
	if id != "-" {
		return id, nil
	}
	list, err := local.Provider{Root: g.cfg.Root}.List(ctx)
	switch {
	case err != nil:
		return "", err
	case len(list) > 1:
		return "", fmt.Errorf("there are %d sandboxes below %s; name one", len(list), g.cfg.Root)
	case len(list) == 0:
		return "", nil
	}
	return list[0].ID, nil
}

// folder returns the session folder to adopt. The folder may belong to a sandbox that has ended,
// for example because its container was stopped. It returns "" if there is no folder.
func (g guestFlags) folder() (string, error) {
	if g.adopt != "-" {
		return g.adopt, nil
	}
	entries, err := os.ReadDir(g.cfg.Root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !e.IsDir() })
	switch len(entries) {
	case 0:
		return "", nil
	case 1:
		return entries[0].Name(), nil
	}
	return "", fmt.Errorf("there are %d folders below %s; name one", len(entries), g.cfg.Root)
}

// inherited returns the variables of an environment that commands get. It leaves out HOME, which
// the sandbox sets, malformed entries, and variables with a prefix of --env-from.
func inherited(environ, prefixes []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
		key, _, ok := strings.Cut(e, "=")
		return !ok || key == "" || key == "HOME" ||
			slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
	})
}

// stdioStream combines standard input and output into one stream.
func stdioStream(stdin io.ReadCloser, stdout io.Writer) (io.ReadWriteCloser, error) {
	in, inOK := stdin.(*input)
	out, outOK := stdout.(*os.File)
	if inOK && outOK {
		return guest.OwnStdio(in.file, out)
	}
	if w, ok := stdout.(io.WriteCloser); ok {
		return guest.Stdio(stdin, w), nil
	}
	return nil, errors.New("standard output cannot be closed")
}
