package gemini

import (
	"encoding/json"
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
	path, text string
	id         string // of the session
	prompts    int
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
	c = chat{path: path, text: text}
	for r := range records(text) {
		if c.id == "" && r.SessionID != "" {
			c.id = r.SessionID
			if r.Kind == "subagent" {
				return c, false, nil
			}
		}
		if _, isPrompt := r.prompt(); isPrompt {
			c.prompts++
		}
	}
	for _, r := range remembered(text) {
		if _, isPrompt := r.prompt(); isPrompt || r.Type == "gemini" && r.shown() > 0 {
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

// prepareChat prepares the session's file, so that the program loads it and does not damage it. It removes
// the stubs of earlier starts. ok is false if there is nothing to resume.
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
	if !strings.HasSuffix(c.text, "\n") { // a crash has truncated the last line
		c.text += "\n"
		if err := agent.RestoreFile(c.path, c.text); err != nil {
			return c, false, err
		}
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

// readTranscript returns the unchanged history of a session, which is empty if there is none yet.
func readTranscript(s runnerscripts.Session) (runnerscripts.Transcript, error) {
	c, ok, _, err := findChat(s)
	if err != nil || !ok {
		return runnerscripts.Transcript{}, err
	}
	t := runnerscripts.Transcript{Main: c.text}
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
		list = append(list, runnerscripts.SubagentTranscript{ID: id, Transcript: text})
	}
	return list, nil
}

// restore writes a transcript where the program finds it.
func restore(s runnerscripts.Session, t runnerscripts.Transcript) error {
	if t.Main == "" {
		return nil
	}
	id := ""
	for r := range records(t.Main) {
		if id = r.SessionID; id != "" {
			break
		}
	}
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

// entry is a line of a session file.
type entry struct {
	SessionID string          `json:"sessionId"` // of the first line
	StartTime string          `json:"startTime"`
	Kind      string          `json:"kind"`
	ID        string          `json:"id"` // of a message; a later entry with the same ID replaces it
	Time      string          `json:"timestamp"`
	Type      string          `json:"type"` // "user", "gemini", ...
	Content   content         `json:"content"`
	Thoughts  []thought       `json:"thoughts"`
	ToolCalls []toolCall      `json:"toolCalls"`
	Tokens    *tokens         `json:"tokens"`
	Set       json.RawMessage `json:"$set"`
	// repeated says that an earlier message has the same text; see repeats.
	repeated bool
}

// content is a list of parts. Its JSON may also be one part or a string.
type content []part

type part struct {
	Text             string            `json:"text"`
	Thought          bool              `json:"thought"`
	FunctionResponse *functionResponse `json:"functionResponse"`
	FunctionCall     json.RawMessage   `json:"functionCall"`
}

type functionResponse struct {
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	Response json.RawMessage `json:"response"`
}

func (c *content) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		*c = content{{Text: s}}
		return nil
	}
	if len(data) > 0 && data[0] == '{' {
		*c = make(content, 1)
		return json.Unmarshal(data, &(*c)[0])
	}
	return json.Unmarshal(data, (*[]part)(c))
}

type thought struct {
	Subject     string `json:"subject"`
	Description string `json:"description"`
}

type tokens struct {
	Input    int64 `json:"input"` // includes the cached tokens
	Output   int64 `json:"output"`
	Cached   int64 `json:"cached"`
	Thoughts int64 `json:"thoughts"`
}

// text returns the text of a message.
func (c content) text() string {
	var b strings.Builder
	for _, p := range c {
		if !p.Thought {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// prompt returns the user's text, if the entry has any.
func (r entry) prompt() (string, bool) {
	words := r.Content
	// A subagent's prompt may follow its loaded context.
	if len(words) > 1 && strings.HasPrefix(strings.TrimSpace(words[0].Text), "<loaded_context>") {
		words = words[1:]
	}
	text := words.text()
	if r.Type != "user" || r.repeated || strings.TrimSpace(text) == "" || hasAnyPrefix(strings.TrimSpace(text), programWords...) {
		return "", false
	}
	return text, true
}

// programWords start messages that the program itself sends to the model as the user.
var programWords = []string{
	"<session_context>", "<hook_context>",
	"System: Potential loop detected.", "[System: You previously generated thoughts ",
	"You have stopped calling tools without finishing. ", // to a subagent
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// records returns an iterator over the valid lines of a session file.
func records(text string) func(yield func(entry) bool) {
	return func(yield func(entry) bool) {
		again := repeats(text)
		for line := range strings.Lines(text) {
			var r entry
			if json.Unmarshal([]byte(line), &r) != nil {
				continue // truncated by a crash, or from a newer version
			}
			r.repeated = again[r.ID]
			if !yield(r) {
				return
			}
		}
	}
}

// remembered returns the messages that the program has after it loads a session, in their order.
func remembered(text string) []entry {
	var order []string
	messages := map[string]entry{}
	keep := func(r entry) {
		if _, known := messages[r.ID]; !known {
			order = append(order, r.ID)
		}
		messages[r.ID] = r
	}
	for r := range records(text) {
		var set struct {
			Messages []entry `json:"messages"`
		}
		switch {
		case r.ID != "":
			keep(r)
		case r.Set != nil && json.Unmarshal(r.Set, &set) == nil && set.Messages != nil:
			order, messages = nil, map[string]entry{}
			for _, m := range set.Messages {
				keep(m)
			}
		}
	}
	list := make([]entry, 0, len(order))
	for _, id := range order {
		list = append(list, messages[id])
	}
	return list
}

// shown returns the number of updates with which the program repeats a message.
func (r entry) shown() int {
	n := 0
	for _, p := range r.Content {
		if p.FunctionResponse != nil || p.FunctionCall != nil || strings.TrimSpace(p.Text) != "" {
			n = 1
		}
	}
	switch r.Type {
	case "user":
		return n
	case "gemini":
		return n + len(r.Thoughts) + len(r.ToolCalls)
	}
	return 0
}
