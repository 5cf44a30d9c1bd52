package claude

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// The program keeps a session in its configuration folder as
//
//	projects/<slug of the workspace>/<session>.jsonl
//	projects/<slug of the workspace>/<session>/subagents/agent-<id>.jsonl
//	projects/<slug of the workspace>/<session>/subagents/agent-<id>.meta.json
const (
	subagentPrefix = "agent-"
	subagentSuffix = ".jsonl"
	metaSuffix     = ".meta.json"
)

func mainTranscript(s runnerscripts.Session) (string, error) {
	dir, err := projectDir(s)
	return filepath.Join(dir, s.SessionID+".jsonl"), err
}

func subagentsDir(s runnerscripts.Session) (string, error) {
	dir, err := projectDir(s)
	return filepath.Join(dir, s.SessionID, "subagents"), err
}

// projectDir returns the folder of the sessions of one workspace.
func projectDir(s runnerscripts.Session) (string, error) {
	workspace, err := filepath.EvalSymlinks(s.Paths.Workspace)
	if err != nil {
		return "", fmt.Errorf("find the workspace: %w", err)
	}
	return filepath.Join(configDir(s), "projects", slug(workspace)), nil
}

// slug returns the program's name for a folder: every UTF-16 unit that is not an ASCII letter
// or digit becomes "-"; a long name is truncated and ends with a hash.
func slug(path string) string {
	const most = 200
	units := utf16.Encode([]rune(path))
	var hash int32
	name := make([]byte, len(units))
	for i, u := range units {
		hash = hash<<5 - hash + int32(u)
		switch {
		case 'a' <= u && u <= 'z', 'A' <= u && u <= 'Z', '0' <= u && u <= '9':
			name[i] = byte(u)
		default:
			name[i] = '-'
		}
	}
	if len(name) <= most {
		return string(name)
	}
	h := int64(hash)
	if h < 0 {
		h = -h
	}
	return string(name[:most]) + "-" + strconv.FormatInt(h, 36)
}

// readTranscript reads the history of a session unchanged; it is empty if there is none yet.
func readTranscript(s runnerscripts.Session) (runnerscripts.Transcript, error) {
	var t runnerscripts.Transcript
	file, err := mainTranscript(s)
	if err != nil {
		return t, err
	}
	if t.Main, err = agent.ReadIfExists(file); err != nil {
		return t, err
	}
	dir, err := subagentsDir(s)
	if err != nil {
		return t, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return t, err
	}
	for _, e := range entries {
		id, ok := subagentID(e.Name())
		if !ok || !e.Type().IsRegular() {
			continue
		}
		sub := runnerscripts.SubagentTranscript{ID: id}
		if sub.Transcript, err = agent.ReadIfExists(filepath.Join(dir, e.Name())); err != nil {
			return t, err
		}
		if sub.Meta, err = agent.ReadIfExists(filepath.Join(dir, subagentPrefix+id+metaSuffix)); err != nil {
			return t, err
		}
		t.Subagents = append(t.Subagents, sub)
	}
	return t, nil
}

func subagentID(name string) (string, bool) {
	id, ok := strings.CutPrefix(name, subagentPrefix)
	if !ok {
		return "", false
	}
	return strings.CutSuffix(id, subagentSuffix)
}

// mendHistory reports whether there is a conversation to resume, and repairs the file after a
// crash. It removes a file without a message, which the program could neither resume nor start
// again, and terminates a truncated last line, so that the next record does not become part of
// it.
func mendHistory(s runnerscripts.Session) (bool, error) {
	file, err := mainTranscript(s)
	if err != nil {
		return false, err
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	found, err := hasMessage(f)
	switch {
	case err != nil:
		return false, fmt.Errorf("read the transcript: %w", err)
	case !found:
		return false, os.Remove(file)
	}
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, info.Size()-1); err != nil {
		return false, err
	}
	if last[0] != '\n' {
		_, err = f.WriteString("\n")
	}
	return true, err
}

// hasMessage reports whether a transcript contains a message.
func hasMessage(r io.Reader) (bool, error) {
	lines := runnerscripts.NewLineReader(r, 0)
	for {
		line, err := lines.Next()
		switch {
		case errors.Is(err, io.EOF):
			return false, nil
		case err != nil:
			return false, err
		}
		var h head
		if json.Unmarshal(line, &h) == nil && (h.Type == "user" || h.Type == "assistant") {
			return true, nil
		}
	}
}

// restore writes a history to the program's folder for this workspace.
func restore(s runnerscripts.Session, t runnerscripts.Transcript) error {
	if t.Main == "" {
		return nil
	}
	file, err := mainTranscript(s)
	if err != nil {
		return err
	}
	if err := agent.RestoreFile(file, t.Main); err != nil {
		return err
	}
	dir, err := subagentsDir(s)
	if err != nil {
		return err
	}
	for _, sub := range t.Subagents {
		if !isSubagentID(sub.ID) {
			return agent.Invalid("restore a transcript as it was read: %q is no id of a subagent of Claude Code", sub.ID)
		}
		if err := agent.RestoreFile(filepath.Join(dir, subagentPrefix+sub.ID+subagentSuffix), sub.Transcript); err != nil {
			return err
		}
		if sub.Meta == "" {
			continue
		}
		if err := agent.RestoreFile(filepath.Join(dir, subagentPrefix+sub.ID+metaSuffix), sub.Meta); err != nil {
			return err
		}
	}
	return nil
}

// isSubagentID reports whether an ID is safe in a file name.
func isSubagentID(id string) bool {
	return id != "" && !strings.ContainsFunc(id, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}
