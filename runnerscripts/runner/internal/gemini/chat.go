package gemini

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// The program keeps sessions in its configuration folder as
//
//	tmp/<project>/.project_root                                  the project's path
//	tmp/<project>/chats/session-<minute>-<8 of its id>.jsonl
//	tmp/<project>/chats/<id>/<subagent>.jsonl
const (
	// project is the program's name for the workspace: the program uses the project whose marker
	// contains the workspace's path.
	project       = "session"
	sessionPrefix = "session-"
	fileSuffix    = ".jsonl"
	// keptPrefix starts the name of the session's file. Its minute is in the past, because the
	// program overwrites a session that began in the current minute.
	keptPrefix = sessionPrefix + "2000-01-01T00-00-"
)

func chatsDir(s runnerscripts.Session) string {
	return filepath.Join(configDir(s), "tmp", project, "chats")
}

// markProject makes the program store the workspace's sessions where the driver looks for them.
func markProject(s runnerscripts.Session, workspace string) error {
	return errors.Join(
		agent.RestoreFile(filepath.Join(configDir(s), "tmp", project, ".project_root"), workspace),
		agent.RestoreFile(filepath.Join(configDir(s), "history", project, ".project_root"), workspace),
	)
}

// chat is a session file.
type chat struct {
	history
	path, old string // old is its text
	prompts   int
	// resumable says that the program can resume the session. It cannot after an interrupted
	// first prompt, for example.
	resumable bool
}

// readChat reads a file; ok is false if it has no messages.
func readChat(path string) (c chat, ok bool, err error) {
	text, err := agent.ReadIfExists(path)
	if err != nil {
		return c, false, err
	}
	c = chat{history: parse(text), path: path, old: text}
	if c.kind == "subagent" {
		return c, false, nil
	}
	for _, m := range c.messages {
		_, isPrompt := m.prompt()
		if isPrompt {
			c.prompts++
		}
		if !m.forgotten && isPrompt || m.Type == "gemini" && m.updates() > 0 {
			c.resumable = true
		}
	}
	return c, agent.IsUUID(c.id) && c.prompts > 0, nil
}

// better reports whether c is a better candidate for the session's file than other.
func (c chat) better(other chat) bool {
	if c.resumable != other.resumable {
		return c.resumable
	}
	return c.prompts > other.prompts
}

// findChat returns the best of the session's files: each start of the program may have created one.
// ok is false if no file has a prompt. stubs are the files that the program cannot resume, and the
// links of joinFiles.
func findChat(s runnerscripts.Session) (found chat, ok bool, stubs []string, err error) {
	entries, err := os.ReadDir(chatsDir(s))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return found, false, nil, err
	}
	for _, e := range entries {
		if !isSessionFile(e.Name()) {
			continue
		}
		if e.Type()&fs.ModeSymlink != 0 { // a link made by joinFiles
			stubs = append(stubs, filepath.Join(chatsDir(s), e.Name()))
		}
		if !e.Type().IsRegular() {
			continue
		}
		c, said, err := readChat(filepath.Join(chatsDir(s), e.Name()))
		if err != nil {
			return found, false, nil, err
		}
		if !c.resumable {
			stubs = append(stubs, c.path)
		}
		if said && (!ok || c.better(found)) {
			found, ok = c, true
		}
	}
	return found, ok, stubs, nil
}

func isSessionFile(name string) bool {
	return strings.HasPrefix(name, sessionPrefix) && strings.HasSuffix(name, fileSuffix)
}

// madeFiles returns the files that the program has created for a new session, oldest first.
func madeFiles(s runnerscripts.Session, id string) ([]string, error) {
	return filepath.Glob(filepath.Join(chatsDir(s), sessionPrefix+"*-"+id[:8]+fileSuffix))
}

// joinFiles makes the program write a new session to one file. The program has two recorders, one
// for messages and one for tool calls, and names their files by the minute of their start. The
// names differ if a minute ends between the two starts. The recorders open their files for each
// line, so that a link takes effect.
func joinFiles(s runnerscripts.Session, id string) error {
	made, err := madeFiles(s, id)
	if err != nil || len(made) < 2 {
		return err
	}
	for _, name := range made[1:] {
		if err := errors.Join(os.Remove(name), os.Symlink(filepath.Base(made[0]), name)); err != nil {
			return fmt.Errorf("join the files of the session: %w", err)
		}
	}
	return nil
}

// prepareChat prepares the session's file, so that the program loads a history that its model's API
// takes, and does not damage it. It removes the stubs of earlier starts. ok is false if there is nothing
// to resume.
func prepareChat(s runnerscripts.Session) (chat, bool, error) {
	c, ok, stubs, err := findChat(s)
	if err != nil {
		return c, false, err
	}
	for _, file := range stubs {
		if err := os.Remove(file); err != nil {
			return c, false, err
		}
	}
	if !ok || !c.resumable {
		return c, false, nil
	}
	if text := c.text(); text != c.old {
		if err := agent.RestoreFile(c.path, text); err != nil {
			return c, false, err
		}
		c.history, c.old = parse(text), text
	}
	if kept := keptFile(s, c.id); c.path != kept {
		if err := os.Rename(c.path, kept); err != nil {
			return c, false, err
		}
		c.path = kept
	}
	return c, true, nil
}

func keptFile(s runnerscripts.Session, id string) string {
	return filepath.Join(chatsDir(s), keptPrefix+id[:8]+fileSuffix)
}

// readTranscript returns the history of a session, which is empty if there is none yet.
func readTranscript(s runnerscripts.Session) (runnerscripts.Transcript, error) {
	c, ok, _, err := findChat(s)
	if err != nil || !ok {
		return runnerscripts.Transcript{}, err
	}
	t := runnerscripts.Transcript{Main: c.text()}
	t.Subagents, err = readSubagents(s, c.id)
	return t, err
}

// readSubagents returns the histories of a session's subagents.
func readSubagents(s runnerscripts.Session, id string) ([]runnerscripts.SubagentTranscript, error) {
	dir := filepath.Join(chatsDir(s), id)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list []runnerscripts.SubagentTranscript
	for _, e := range entries {
		id, isChat := strings.CutSuffix(e.Name(), fileSuffix)
		if !isChat || !e.Type().IsRegular() {
			continue
		}
		text, err := agent.ReadIfExists(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		list = append(list, runnerscripts.SubagentTranscript{ID: id, Transcript: parse(text).text()})
	}
	return list, nil
}

// restore writes a transcript where the program finds it.
func restore(s runnerscripts.Session, t runnerscripts.Transcript) error {
	if t.Main == "" {
		return nil
	}
	id := parse(t.Main).id
	if !agent.IsUUID(id) {
		return agent.Invalid("restore a transcript of the Gemini CLI: this one does not begin with the id of a session")
	}
	if err := clearChats(s); err != nil {
		return err
	}
	if err := agent.RestoreFile(keptFile(s, id), t.Main); err != nil {
		return err
	}
	for _, sub := range t.Subagents {
		if sub.ID != filepath.Base(sub.ID) || !filepath.IsLocal(sub.ID) {
			return agent.Invalid("restore a transcript whose subagents have plain names: %q is none", sub.ID)
		}
		if err := agent.RestoreFile(filepath.Join(chatsDir(s), id, sub.ID+fileSuffix), sub.Transcript); err != nil {
			return err
		}
	}
	return nil
}

// clearChats removes the files of another conversation, or of an earlier state of this one.
func clearChats(s runnerscripts.Session) error {
	entries, err := os.ReadDir(chatsDir(s))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() && isSessionFile(e.Name()) { // links of joinFiles, too
			if err := os.Remove(filepath.Join(chatsDir(s), e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
