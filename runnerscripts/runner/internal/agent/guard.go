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

// mostLinks is how many symbolic links a path may lead through.
const mostLinks = 255

// Guard keeps an agent's tools for files inside of the workspace, where the agent
// asks before it uses them. It decides by path, with symbolic links resolved at
// the time of the question. NewGuard makes one; the zero value refuses nothing. It
// may be used by several goroutines.
type Guard struct {
	workspace string // empty: anything goes
	readable  []string
}

// NewGuard returns the guard of a session, which lets the files below the readable
// folders be read, such as those of the profile's skills. Relative ones are in the
// session's home.
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

// Refuses reports whether a tool call must not run, and the reason as a message for the
// agent. It refuses calls on a file outside the workspace, or possibly outside.
// It does not refuse calls of other kinds, such as commands.
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

// paths are those that a tool call says it works on.
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

// holds reports whether a path stays inside, both for the system, which follows
// links before "..", and for agents, which often remove ".." first, and take "~"
// for the home.
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
			// What is below it cannot be a link.
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

// EmitRefused tells that a guard has refused a tool call.
func EmitRefused(out Sink, conversation string, call runnerscripts.ToolCall, reason string) {
	out.Emit(conversation, runnerscripts.TypeLog, runnerscripts.Log{
		Level:   "warn",
		Message: fmt.Sprintf("%s was not allowed: %s", call.Title, reason),
	})
}
