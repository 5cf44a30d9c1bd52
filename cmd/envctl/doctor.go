package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/sessionstore"
	"github.com/agentenv-dev/agentenv/internal/statedir"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/session/remote"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

// finding is what one check of doctor found.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"` // "ok", "missing" (something will not work), "failed" (nothing will)
	Detail string `json:"detail,omitempty"`
	Fix    string `json:"fix,omitempty"`
}

const (
	statusOK      = "ok"
	statusMissing = "missing"
	statusFailed  = "failed"
)

func (a *app) newDoctorCmd() *cobra.Command {
	t, m := &target{app: a}, &makeFlags{}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what works on this machine and what is missing",
		Long: `Check what agentenv needs: really make a sandbox, run the scripted agent in it, and
look for the agents, the tools, the Docker engine and an account at Modal; with --server,
ask that server for sessions. The exit status is 1 if the server, or the kind of sandbox
that was asked for (local without --sandbox), does not work.`,
		Example: "  envctl doctor\n  envctl doctor --sandbox docker --image golang:1.26\n  envctl doctor --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := t.loadNew(cmd.Context(), m)
			if err != nil {
				return err
			}
			findings := a.examine(cmd.Context(), cfg)
			if err := a.report(findings, asJSON); err != nil {
				return err
			}
			for _, f := range findings {
				if f.Status == statusFailed {
					return &exitError{code: exitFailure}
				}
			}
			return nil
		},
	}
	t.flags(cmd)
	m.flags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) report(findings []finding, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(a.out).Encode(findings)
	}
	paint := map[string]func(string) term.Span{statusOK: term.Green, statusMissing: term.Cyan, statusFailed: term.Red}
	var rows [][]term.Span
	for _, f := range findings {
		rows = append(rows, []term.Span{term.Plain(f.Check), paint[f.Status](f.Status), term.Plain(f.Detail)})
		if f.Fix != "" {
			rows = append(rows, []term.Span{term.Plain(""), term.Plain(""), term.Bold(f.Fix)})
		}
	}
	return a.out.Table(rows...)
}

func (a *app) examine(ctx context.Context, cfg environment.Config) []finding {
	var findings []finding
	if a.server != "" {
		findings = append(findings, a.checkServer(ctx))
	}
	findings = append(findings, checkSandbox(ctx, cfg)...)
	for _, typ := range allTypes(cfg.Sandbox) {
		findings = append(findings, checkType(ctx, cfg, typ)...)
	}
	for _, agent := range knownAgents {
		if agent.npm != "" {
			findings = append(findings, checkTool(ctx, "agent "+agent.name, agent.name,
				"for local sandboxes, install it with: npm install -g "+agent.npm, "--version"))
		}
	}
	return append(findings,
		checkTool(ctx, "git", "git", "needed for workspaces from git, for --gitignore, --history and --branch; install git", "--version"),
		checkWatches(),
		a.checkSessions(ctx),
		checkDisk("disk of sessions", "sessions and patches could not be stored: envctl sessions rm --older-than 720h, envctl gc", statedir.Path),
		checkDisk("disk of sandboxes", "local sandboxes and the runner need it: envctl ls, envctl rm ID, envctl gc", os.UserCacheDir),
	)
}

// checkServer asks the server for sessions, with the token that other commands send.
func (a *app) checkServer(ctx context.Context) finding {
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	f := finding{Check: "server", Status: statusOK, Detail: a.server + " answers, and accepts the token"}
	_, _, err := a.servedRecords(ctx, store.Filter{Limit: 1})
	if err != nil {
		f.Status, f.Detail, f.Fix = statusFailed, err.Error(), "start 'envctl serve' there, or give the address that it prints as --server or AGENTENV_SERVER"
	}
	if errors.Is(err, remote.ErrUnauthorized) {
		f.Fix = "set AGENTENV_TOKEN to the token of 'envctl serve', or to one of 'envctl serve token add'"
	}
	return f
}

// allTypes returns all types of sandbox, and the chosen one if another module provides it.
func allTypes(chosen environment.Sandbox) []string {
	types := primitives.Types()
	if !slices.Contains(types, chosen.Type) {
		types = append(types, chosen.Type)
	}
	return types
}

// examineTimeout is how long an engine or a service may take to answer.
const examineTimeout = 15 * time.Second

// checkType returns findings about a type of sandbox. If the type was not chosen, a failure is
// only reported as missing.
func checkType(ctx context.Context, cfg environment.Config, typ string) []finding {
	chosen := typ == cfg.Sandbox.Type
	if !chosen {
		_ = cfg.Sandbox.Choose(typ) // it fails only for a machine
	}
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	found, err := environment.Examine(ctx, cfg)
	if err != nil {
		found = []primitives.Finding{{Subject: "configuration", Status: primitives.FindingFailed, Err: err}}
	}
	var findings []finding
	for _, of := range found {
		f := finding{Check: typ + " " + of.Subject, Status: cmp.Or(string(of.Status), statusOK), Detail: of.Detail, Fix: of.Advice}
		if of.Err != nil {
			detail, fix := remedy(of.Err)
			f.Detail, f.Fix = firstOf(f.Detail, detail), firstOf(f.Fix, fix)
		}
		if f.Status == statusFailed && !chosen {
			f.Status = statusMissing
		}
		if f.Fix != "" && !chosen {
			f.Fix = "for --sandbox " + typ + ": " + f.Fix
		}
		findings = append(findings, f)
	}
	return findings
}

// remedy splits an error into the problem and the advice, if the error has advice.
func remedy(err error) (detail, fix string) {
	var advised interface {
		error
		Advice() string
	}
	if !errors.As(err, &advised) {
		return err.Error(), ""
	}
	fix = advised.Advice()
	return strings.Replace(err.Error(), "; "+fix, "", 1), fix
}

// checkSandbox creates a sandbox and runs the scripted agent in it.
func checkSandbox(ctx context.Context, cfg environment.Config) []finding {
	name := "sandbox " + cfg.Sandbox.Type
	cfg.Agent = environment.Agent{Name: "script"}
	cfg.Workspace, cfg.Sandbox.Keep = nil, false
	env, err := environment.Create(ctx, cfg)
	if err != nil {
		f := finding{Check: name, Status: statusFailed}
		f.Detail, f.Fix = remedy(err)
		return []finding{f}
	}
	caps := env.Primitive().Capabilities()
	findings := []finding{{Check: name, Status: statusOK, Detail: fmt.Sprintf("%s/%s, process trees are ended by %s", caps.OS, caps.Arch, caps.TreeKill)}}
	if caps.Isolation == primitives.IsolationNone && caps.TreeKill == primitives.TreeKillSweep {
		findings[0].Fix = "a writable cgroup v2 on the sandbox's machine would end process trees without exception"
	}
	runner := finding{Check: "runner", Status: statusOK, Detail: "the scripted agent answered"}
	for _, err := range env.ExecuteQuery(ctx, environment.Query{Prompt: "doctor"}) {
		if err != nil {
			runner.Status, runner.Detail = statusFailed, err.Error()
		}
	}
	if err := env.Close(); err != nil {
		runner.Status, runner.Detail = statusFailed, errors.Join(err).Error()
	}
	return append(findings, runner)
}

// checkTool asks a program of this machine for its version.
func checkTool(ctx context.Context, check, program, fix string, args ...string) finding {
	path, err := exec.LookPath(program)
	if err != nil {
		return finding{Check: check, Status: statusMissing, Detail: program + " is not in PATH", Fix: fix}
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, args...).Output()
	if err != nil {
		return finding{Check: check, Status: statusMissing, Detail: fmt.Sprintf("%s does not work: %v", path, err), Fix: fix}
	}
	version, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return finding{Check: check, Status: statusOK, Detail: version + " (" + path + ")"}
}

// checkSessions checks how much of their room the stored sessions take, and reads them as far as it gets within
// examineTimeout.
func (a *app) checkSessions(ctx context.Context) finding {
	f := finding{Check: "stored sessions", Status: statusMissing}
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	nearly := false
	err := a.withSessions(ctx, func(s *sqlite.Store) error {
		size, full, err := storeSize(ctx, s)
		f.Detail, nearly = "they "+size, full
		if damage := s.Check(ctx); damage != nil && !errors.Is(damage, context.DeadlineExceeded) {
			return damage
		}
		return err
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.Status, f.Detail = statusOK, "there are none"
	case err != nil && !errors.Is(err, context.DeadlineExceeded):
		f.Detail = err.Error()
	case nearly:
		f.Fix = "soon nothing new can begin: envctl sessions rm --older-than 720h, or raise " + sessionstore.MaxSizeVariable
	default:
		f.Status = statusOK
	}
	return f
}

// littleRoom is a size in bytes below which a workspace or a session hardly fits on a disk.
const littleRoom = 256 << 20

// checkDisk checks how much room there is on the disk of a folder, which may not exist yet.
func checkDisk(check, fix string, folder func() (string, error)) finding {
	f := finding{Check: check, Status: statusMissing}
	dir, err := folder()
	var disk unix.Statfs_t
	if err == nil {
		for err = unix.Statfs(dir, &disk); errors.Is(err, unix.ENOENT) && dir != filepath.Dir(dir); err = unix.Statfs(dir, &disk) {
			dir = filepath.Dir(dir)
		}
	}
	if err != nil {
		f.Detail = err.Error()
		return f
	}
	free := uint64(disk.Bavail) * uint64(disk.Bsize) //nolint:unconvert // other types on other systems
	f.Detail = fmt.Sprintf("%d MiB free (%s)", free>>20, dir)
	if free < littleRoom {
		f.Fix = "make room, " + fix
		return f
	}
	f.Status = statusOK
	return f
}

// fewWatches is a limit below which watching a large repository fails.
const fewWatches = 65536

// checkWatches checks how many directories may be watched.
func checkWatches() finding {
	f := finding{Check: "file watches", Status: statusOK}
	data, err := os.ReadFile("/proc/sys/fs/inotify/max_user_watches")
	if err != nil {
		f.Detail = "no limit known on this system"
		return f
	}
	limit, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	f.Detail = fmt.Sprintf("%d directories can be watched", limit)
	if limit < fewWatches {
		f.Status = statusMissing
		f.Fix = fmt.Sprintf("for large repositories: sysctl fs.inotify.max_user_watches=%d", 8*fewWatches)
	}
	return f
}
