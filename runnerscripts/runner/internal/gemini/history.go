package gemini

import (
	"encoding/json"
	"errors"
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
	// project is the name that the driver gives to the workspace: the program
	// takes the one whose marker has its path.
	project       = "session"
	sessionPrefix = "session-"
	fileSuffix    = ".jsonl"
	// keptPrefix is that of the one file of the session: of a minute that never
	// comes, since the program overwrites a session that began in this one.
	keptPrefix = sessionPrefix + "2000-01-01T00-00-"
)

func chatsDir(s runnerscripts.Session) string {
	return filepath.Join(configDir(s), "tmp", project, "chats")
}

// markProject makes the program keep the workspace's sessions where the driver
// looks for them.
func markProject(s runnerscripts.Session, workspace string) error {
	return errors.Join(
		agent.RestoreFile(filepath.Join(configDir(s), "tmp", project, ".project_root"), workspace),
		agent.RestoreFile(filepath.Join(configDir(s), "history", project, ".project_root"), workspace),
	)
}

// chat is a file of a session.
type chat struct {
	path, text string
	id         string // of the session
	prompts    int
}

// readChat reads a file; ok is false if it is not one of a conversation.
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
	return c, agent.IsUUID(c.id) && c.prompts > 0, nil
}

// findChat finds the session's file among those that the program's starts leave.
// It is not ok if nothing was said yet. others are the files of no conversation.
func findChat(s runnerscripts.Session) (found chat, ok bool, others []string, err error) {
	entries, err := os.ReadDir(chatsDir(s))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return found, false, nil, err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), sessionPrefix) || !strings.HasSuffix(e.Name(), fileSuffix) {
			continue
		}
		c, isChat, err := readChat(filepath.Join(chatsDir(s), e.Name()))
		switch {
		case err != nil:
			return found, false, nil, err
		case !isChat, ok && c.prompts <= found.prompts:
			others = append(others, c.path)
			continue
		case ok:
			others = append(others, found.path)
		}
		found, ok = c, true
	}
	return found, ok, others, nil
}

// mend makes the session's file one that the program loads and does not spoil,
// and removes what its earlier starts left behind.
func mend(s runnerscripts.Session) (chat, bool, error) {
	c, ok, others, err := findChat(s)
	if err != nil {
		return c, false, err
	}
	for _, file := range others {
		if err := os.Remove(file); err != nil {
			return c, false, err
		}
	}
	if !ok {
		return c, false, nil
	}
	kept := keptFile(s, c.id)
	if !strings.HasSuffix(c.text, "\n") { // a crash cut the last line
		c.text += "\n"
		if err := agent.RestoreFile(c.path, c.text); err != nil {
			return c, false, err
		}
	}
	if c.path != kept {
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

// readTranscript reads the history of a session, byte by byte; an empty one if
// there is none yet.
func readTranscript(s runnerscripts.Session) (runnerscripts.Transcript, error) {
	c, ok, _, err := findChat(s)
	if err != nil || !ok {
		return runnerscripts.Transcript{}, err
	}
	t := runnerscripts.Transcript{Main: c.text}
	dir := filepath.Join(chatsDir(s), c.id)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return t, err
	}
	for _, e := range entries {
		id, isChat := strings.CutSuffix(e.Name(), fileSuffix)
		if !isChat || !e.Type().IsRegular() {
			continue
		}
		text, err := agent.ReadIfExists(filepath.Join(dir, e.Name()))
		if err != nil {
			return t, err
		}
		t.Subagents = append(t.Subagents, runnerscripts.SubagentTranscript{ID: id, Transcript: text})
	}
	return t, nil
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

// record is a line of a file of a session.
type record struct {
	SessionID string          `json:"sessionId"` // of the first line
	Kind      string          `json:"kind"`
	ID        string          `json:"id"` // of a message; one that comes again replaces it
	Time      string          `json:"timestamp"`
	Type      string          `json:"type"` // "user", "gemini", ...
	Content   content         `json:"content"`
	Thoughts  []thought       `json:"thoughts"`
	ToolCalls []toolCall      `json:"toolCalls"`
	Tokens    *tokens         `json:"tokens"`
	Set       json.RawMessage `json:"$set"`
}

// content is a list of parts; a text may stand for one.
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
	Input    int64 `json:"input"` // with the cached ones
	Output   int64 `json:"output"`
	Cached   int64 `json:"cached"`
	Thoughts int64 `json:"thoughts"`
}

// text is what is said in a message.
func (c content) text() string {
	var b strings.Builder
	for _, p := range c {
		if !p.Thought {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// prompt returns the words of the user, if the record has any.
func (r record) prompt() (string, bool) {
	text := r.Content.text()
	if r.Type != "user" || strings.TrimSpace(text) == "" || hasAnyPrefix(strings.TrimSpace(text), "<session_context>", "<hook_context>") {
		return "", false
	}
	return text, true
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// records are the whole lines of a file.
func records(text string) func(yield func(record) bool) {
	return func(yield func(record) bool) {
		for line := range strings.Lines(text) {
			var r record
			if json.Unmarshal([]byte(line), &r) != nil {
				continue // cut by a crash, or of a newer version
			}
			if !yield(r) {
				return
			}
		}
	}
}
