// Package hostgit runs git on this machine for folders and repositories that a sandbox may have
// written. Git runs no command that they name.
//
// git.go runs git with protective settings. clone.go fetches a repository. history.go and index.go
// copy the repository of a folder for a sandbox; receive.go and rest.go take the work of a sandbox into a branch of it.
// ignore.go lists the files of a folder that git would copy. filter.go finds those that git converts. url.go separates
// the password from an address.
package hostgit

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/redact"
	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/internal/tail"
	"github.com/agentenv-dev/agentenv/primitives"
)

// ErrFailed means that git is not installed on this machine, or that it failed.
var ErrFailed = errors.New("git failed")

// fetchProtocols are the protocols that git may use to fetch into a repository of this package.
const fetchProtocols = "https:http:ssh:git:file"

// maxGitOutput limits the output of git that is kept in memory: 256 MiB.
const maxGitOutput = 256 << 20

// hardened are settings for every git on this machine. They override those of a repository,
// which a sandbox may have written.
var hardened = []string{
	"-c", "core.hooksPath=" + os.DevNull, "-c", "core.fsmonitor=false", "-c", "core.sshCommand=", "-c", "core.askPass=",
	"-c", "core.alternateRefsCommand=", "-c", "core.pager=cat",
	"-c", "credential.helper=", "-c", "diff.external=",
	"-c", "core.logAllRefUpdates=false", "-c", "core.autocrlf=false", "-c", "core.symlinks=true",
	"-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "submodule.recurse=false",
}

// gitCommand runs git on this machine. It never runs a command that the configuration of a
// repository names: a hook, a helper, a filter, a pager. It never fetches missing objects, and
// never prompts.
type gitCommand struct {
	dir     string
	args    []string // before the subcommand
	env     []string
	secrets []string
	// userConfig uses the user's own configuration, for its ignore files.
	userConfig bool
	// userAttributes uses the user's own attributes file.
	userAttributes bool
	// fetches allows [fetchProtocols]. Only a repository whose configuration this package wrote
	// may fetch.
	fetches bool
	// complete makes missing objects an error; git only warns about them.
	complete bool
	// listed receives the output instead of the result of run.
	listed *treeMeter
	// limit bounds what checkout writes.
	limit archive.Limit
	// most bounds the output in bytes; zero means maxGitOutput.
	most int
	// input is the standard input of git; nil means none.
	input io.Reader
	// unhardened leaves out the settings of hardened, for "git config", which runs nothing.
	unhardened bool
}

// environ returns the environment of git. It inherits only named variables.
func (g gitCommand) environ() []string {
	env := append(hostEnv("PATH", "HOME", "SUDO_UID", "XDG_CONFIG_HOME", "TMPDIR"),
		"LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "SSH_ASKPASS=", "GIT_OPTIONAL_LOCKS=0",
		// This overrides core.gitProxy: git takes its first value.
		"GIT_PROXY_COMMAND=",
		"GIT_NO_LAZY_FETCH=1", "GIT_LFS_SKIP_SMUDGE=1")
	if g.fetches {
		// This overrides protocol.NAME.allow of any configuration.
		env = append(env, "GIT_ALLOW_PROTOCOL="+fetchProtocols, "GIT_SSH_COMMAND=ssh -oBatchMode=yes")
		env = append(env, hostEnv("SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR",
			"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")...)
	} else {
		env = append(env, "GIT_ALLOW_PROTOCOL=none", "GIT_SSH_COMMAND=false")
	}
	if !g.userConfig {
		env = append(env, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull)
	}
	return append(env, g.env...)
}

func (g gitCommand) run(ctx context.Context, args ...string) (string, error) {
	all := append([]string{}, g.args...)
	if !g.unhardened {
		all = append(append([]string{}, hardened...), g.args...)
		if !g.userAttributes {
			all = append(all, "-c", "core.attributesFile="+os.DevNull)
		}
	}
	cmd := exec.CommandContext(ctx, "git", append(all, args...)...)
	cmd.Dir, cmd.Env, cmd.Stdin = g.dir, g.environ(), g.input
	// The programs that git starts for a transport do not end with git, so kill its process
	// group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	most := cmp.Or(g.most, maxGitOutput)
	stdout := &boundedBuffer{left: most}
	stderr := &redact.Tail{Hide: redact.New(g.secrets)}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if g.listed != nil {
		cmd.Stdout = g.listed
	}
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case g.listed != nil && g.listed.err != nil:
		return "", g.listed.err
	case stdout.left < 0:
		return "", fmt.Errorf("git %s: %w: it printed more than %d MiB", args[0], primitives.ErrLimit, most>>20)
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%w: %w; install git on this machine", ErrFailed, err)
	case err != nil && g.fetches:
		return "", fmt.Errorf("%w: git %s: %w: %s", ErrFailed, args[0], err, fatalLine(stderr.String()))
	case err != nil:
		return "", fmt.Errorf("%w: git %s: %w: %s", ErrFailed, args[0], err, tail.Of(stderr.String()))
	case g.complete && lacksObjects(stderr.String()):
		return "", fmt.Errorf("%w: git %s: %s lacks objects, and they are not fetched (%s); fetch them, or copy the folder without gitignore",
			ErrFailed, args[0], g.dir, tail.Of(stderr.String()))
	}
	return stdout.kept.String(), nil
}

// checkout checks out a commit, unless the commit is larger than g.limit: a few objects can name
// any number of files.
func (g gitCommand) checkout(ctx context.Context, commit string, how ...string) error {
	if err := g.measure(ctx, commit); err != nil {
		return err
	}
	_, err := g.run(ctx, append([]string{"checkout", "--quiet"}, how...)...)
	return err
}

// measure returns an error for a commit that is larger than g.limit.
func (g gitCommand) measure(ctx context.Context, commit string) error {
	g.listed = &treeMeter{add: g.limit.Meter()}
	_, err := g.run(ctx, "ls-tree", "-r", "-t", "-l", "-z", "--full-tree", commit)
	return err
}

// treeMeter counts the output of git ls-tree with sizes and NULs.
type treeMeter struct {
	add     func(*tar.Header) error
	partial []byte // an incomplete entry
	err     error
}

// Write implements io.Writer.
func (m *treeMeter) Write(p []byte) (int, error) {
	for rest := p; m.err == nil; {
		entry, after, ended := bytes.Cut(rest, []byte{0})
		if m.partial = append(m.partial, entry...); len(m.partial) > maxTreeEntry {
			m.err = fmt.Errorf("%w: the name of a file is too long", primitives.ErrLimit)
		}
		if !ended {
			break
		}
		rest = after
		attributes, name, _ := strings.Cut(string(m.partial), "\t")
		m.partial = m.partial[:0]
		h := &tar.Header{Name: name}
		if f := strings.Fields(attributes); len(f) == 4 && f[3] != "-" {
			var err error
			if h.Size, err = strconv.ParseInt(f[3], 10, 64); err != nil {
				m.err = fmt.Errorf("%w: the object of %q is damaged", ErrFailed, name) // git prints BAD
				break
			}
		}
		m.err = m.add(h)
	}
	return len(p), m.err
}

// maxTreeEntry limits the length of an entry: more than any path that Linux accepts.
const maxTreeEntry = 64 << 10

// exitCode returns the exit code of git; zero if it did not fail, or was not run.
func exitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return 0
}

// fatalLine returns git's fatal error, without its advice for users at a terminal.
func fatalLine(stderr string) string {
	for line := range strings.Lines(stderr) {
		if strings.HasPrefix(line, "fatal: ") {
			return strings.TrimSpace(line)
		}
	}
	return tail.Of(stderr)
}

// lacksObjects reports whether git could not read an object because it must not fetch it. Git
// then continues: it reports that itself, or the fetch that it started does.
func lacksObjects(stderr string) bool {
	return strings.Contains(stderr, "lazy fetching disabled") || strings.Contains(stderr, "fatal: ")
}

// boundedBuffer keeps what is written up to a limit, and fails beyond the limit.
type boundedBuffer struct {
	kept bytes.Buffer // not embedded: its ReadFrom has no limit
	left int
}

// Write implements io.Writer.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, primitives.ErrLimit
	}
	return b.kept.Write(p)
}

// hostEnv returns the named variables of this machine that are set.
func hostEnv(keys ...string) []string {
	var env []string
	for _, key := range keys {
		if value, ok := os.LookupEnv(key); ok {
			env = append(env, key+"="+value)
		}
	}
	return env
}
