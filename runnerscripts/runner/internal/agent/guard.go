package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// mostLinks bounds the symbolic links in a path.
const mostLinks = 255

// Guard confines an agent's file tools to the workspace, for calls about which the agent asks.
// It decides by path, and resolves symbolic links at the time of the question. Use NewGuard;
// the zero value refuses nothing. It may be used by several goroutines.
type Guard struct {
	workspace string // empty: no limit
	readable  []string
}

// NewGuard returns the guard of a session. It also allows reads below the readable folders,
// such as those of the profile's skills. Relative folders are in the session's home.
func NewGuard(s runnerscripts.Session, readable ...string) Guard {
	if s.Agent.AllowOutside {
		return Guard{}
	}
	g := Guard{workspace: s.Paths.Workspace}
	for _, dir := range readable {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(s.Paths.Home, dir)
		}
		g.readable = append(g.readable, dir)
	}
	return g
}

// Refuses reports whether a tool call must not run, with the reason as a message for the agent.
// It refuses calls on files that are, or may be, outside the workspace. It does not refuse
// other kinds of calls, such as commands.
func (g Guard) Refuses(call runnerscripts.ToolCall) (string, bool) {
	if g.workspace == "" {
		return "", false
	}
	reads := false
	switch call.Kind {
	case runnerscripts.ToolRead, runnerscripts.ToolSearch:
		reads = true
	case runnerscripts.ToolEdit, runnerscripts.ToolDelete, runnerscripts.ToolMove:
	default:
		return "", false
	}
	for _, name := range paths(call) {
		if !g.holds(name, reads) {
			return fmt.Sprintf("%s is outside of the workspace %s, where this tool may not be used. "+
				"Work on files inside of the workspace.", name, g.workspace), true
		}
	}
	return "", false
}

// paths returns the paths on which a tool call works.
func paths(call runnerscripts.ToolCall) []string {
	var list []string
	for _, l := range call.Locations {
		list = append(list, l.Path)
	}
	for _, c := range call.Content {
		if c.Type == "diff" {
			list = append(list, c.Path)
		}
	}
	return list
}

// holds reports whether a path stays inside, both for the system, which follows links before
// "..", and for agents: many remove ".." first and expand "~" to the home.
func (g Guard) holds(name string, reads bool) bool {
	if name == "~" || strings.HasPrefix(name, "~/") {
		return false
	}
	if !filepath.IsAbs(name) {
		name = g.workspace + "/" + name
	}
	dirs := []string{g.workspace}
	if reads {
		dirs = append(dirs, g.readable...)
	}
	return insideAny(dirs, name) && insideAny(dirs, filepath.Clean(name))
}

func insideAny(dirs []string, name string) bool {
	file, err := resolve(name)
	if err != nil {
		return false
	}
	for _, dir := range dirs {
		if dir, err := resolve(dir); err == nil && within(dir, file) {
			return true
		}
	}
	return false
}

// within reports whether a resolved path is dir or below it.
func within(dir, file string) bool {
	return file == dir || strings.HasPrefix(file, strings.TrimSuffix(dir, "/")+"/")
}

// resolve follows the symbolic links of an absolute path as far as it exists; the
// target of a link need not exist.
func resolve(name string) (string, error) {
	done := "/"
	todo := strings.Split(name, "/")
	for links := 0; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			done = filepath.Dir(done)
			continue
		}
		next := filepath.Join(done, part)
		info, err := os.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			// Nothing below a missing element can be a link.
		case err != nil:
			return "", err
		case info.Mode()&fs.ModeSymlink != 0:
			if links++; links > mostLinks {
				return "", fmt.Errorf("%s: too many symbolic links", name)
			}
			target, err := os.Readlink(next)
			if err != nil {
				return "", err
			}
			if filepath.IsAbs(target) {
				done = "/"
			}
			todo = append(strings.Split(target, "/"), todo...)
			continue
		}
		done = next
	}
	return done, nil
}

// EmitRefused reports a tool call that a guard has refused.
func EmitRefused(out Sink, conversation string, call runnerscripts.ToolCall, reason string) {
	out.Emit(conversation, runnerscripts.TypeLog, runnerscripts.Log{
		Level:   "warn",
		Message: fmt.Sprintf("%s was not allowed: %s", call.Title, reason),
	})
}
