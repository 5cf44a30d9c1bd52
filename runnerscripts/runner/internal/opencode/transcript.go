package opencode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// The program stores sessions in a database. Files of the driver hold the ID of the current session
// and the address of its server. A process that reads the transcript while the agent works needs
// them.
func sessionFile(s runnerscripts.Session) string { return filepath.Join(ownDir(s), "session") }
func addressFile(s runnerscripts.Session) string { return filepath.Join(ownDir(s), "server.json") }

// address is the address of a running server. Only the user can read its file, because it gives
// access to the database.
type address struct {
	URL      string `json:"url"`
	Password string `json:"password"`
}

func (s *server) writeAddress(session runnerscripts.Session) error {
	return writePrivate(addressFile(session), rawJSON(address{URL: s.base, Password: s.password}))
}

// readSessionID returns the program's id of the session; empty if there is none yet.
func readSessionID(s runnerscripts.Session) (string, error) {
	text, err := agent.ReadIfExists(sessionFile(s))
	id := strings.TrimSpace(text)
	if err != nil || id == "" {
		return "", err
	}
	if !idPattern.Get().MatchString(id) {
		return "", agent.Failed("remove %s, which does not hold an id of a session of OpenCode", sessionFile(s))
	}
	return id, nil
}

// openSession returns the program's id of the session. It creates the session if there is none.
func openSession(ctx context.Context, a *server, s runnerscripts.Session) (id string, resumed bool, err error) {
	if id, err = readSessionID(s); err != nil {
		return "", false, err
	}
	var info sessionInfo
	if id != "" {
		err := a.get(ctx, "/session/"+id, &info)
		if err == nil || !hasStatus(err, http.StatusNotFound) {
			return id, true, err
		}
	}
	// With a title the program does not ask the model for one.
	if err := a.post(ctx, "/session", map[string]string{"title": "agentenv"}, &info); err != nil {
		return "", false, err
	}
	if !idPattern.Get().MatchString(info.ID) {
		return "", false, agent.Failed("install OpenCode %s, which this runner was tested with: it calls a session %q", testedVersion, info.ID)
	}
	return info.ID, false, writePrivate(sessionFile(s), []byte(info.ID+"\n"))
}

// readTranscript reads the history of a session. It returns an empty transcript if there is none
// yet.
func readTranscript(ctx context.Context, s runnerscripts.Session, patience time.Duration) (runnerscripts.Transcript, error) {
	var t runnerscripts.Transcript
	id, err := readSessionID(s)
	if err != nil || id == "" {
		return t, err
	}
	a, leave, err := reach(ctx, s, id, patience)
	if err != nil {
		return t, err
	}
	defer leave()
	var subs []string
	t.Main, subs, err = export(ctx, a, id)
	switch {
	case hasStatus(err, http.StatusNotFound): // the program crashed before it stored the session
		return runnerscripts.Transcript{}, nil
	case err != nil:
		return t, err
	}
	seen := map[string]bool{id: true}
	for ; len(subs) > 0; subs = subs[1:] {
		if seen[subs[0]] {
			continue
		}
		seen[subs[0]] = true
		text, more, err := export(ctx, a, subs[0])
		switch {
		case hasStatus(err, http.StatusNotFound): // it was removed
			continue
		case err != nil:
			return t, err
		}
		t.Subagents = append(t.Subagents, runnerscripts.SubagentTranscript{ID: subs[0], Transcript: text})
		subs = append(subs, more...)
	}
	return t, nil
}

// reachTime limits the wait for a running server. It is far above what a working server needs to
// answer.
const reachTime = 10 * time.Second

// reach connects to the session's running server, or starts one for this call.
func reach(ctx context.Context, s runnerscripts.Session, id string, patience time.Duration) (*api, func(), error) {
	var where address
	text, err := agent.ReadIfExists(addressFile(s))
	if err != nil {
		return nil, nil, err
	}
	if json.Unmarshal([]byte(text), &where) == nil && where.URL != "" {
		a := newAPI(where.URL, where.Password)
		ctx, cancel := context.WithTimeout(ctx, reachTime)
		defer cancel()
		if a.get(ctx, "/session/"+id, nil) == nil {
			return a, a.forget, nil
		}
		a.forget()
	}
	started, err := startServer(ctx, s, readingOnly(s), patience)
	if err != nil {
		return nil, nil, err
	}
	// This server has no work to finish.
	return started.api, started.kill, nil
}

// export reads a session in the format of "opencode export", with sorted keys, because the
// program's order changes when it imports a session. It also returns the sessions of the
// subagents. A session without messages counts as missing.
func export(ctx context.Context, a *api, id string) (string, []string, error) {
	var e exported
	if err := a.get(ctx, "/session/"+id, &e.Info); err != nil {
		return "", nil, err
	}
	var list []json.RawMessage
	if err := a.get(ctx, "/session/"+id+"/message", &list); err != nil {
		return "", nil, err
	}
	if len(list) == 0 {
		return "", nil, nil
	}
	var messages []message
	var b bytes.Buffer
	b.WriteString(`{"info":`)
	if err := inOrder(&b, e.Info); err != nil {
		return "", nil, err
	}
	for i, raw := range list {
		var m message
		if err := json.Unmarshal(raw, &m); err != nil {
			return "", nil, fmt.Errorf("read a message of the transcript: %w", err)
		}
		messages = append(messages, m)
		b.WriteString(map[bool]string{true: ",\"messages\":[\n", false: ",\n"}[i == 0])
		if err := inOrder(&b, raw); err != nil {
			return "", nil, err
		}
	}
	b.WriteString("\n]}\n")
	return b.String(), subagentSessions(messages), nil
}

// inOrder writes JSON with sorted keys and unchanged numbers.
func inOrder(b *bytes.Buffer, raw json.RawMessage) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return fmt.Errorf("read the transcript: %w", err)
	}
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // the line end
	return nil
}

// restore replaces the content of the program's database with a history.
func restore(ctx context.Context, s runnerscripts.Session, t runnerscripts.Transcript) error {
	if t.Main == "" {
		return nil
	}
	main, _, err := parseExport(t.Main)
	if err != nil {
		return err
	}
	texts := []string{t.Main}
	for _, sub := range t.Subagents {
		if _, _, err := parseExport(sub.Transcript); err != nil {
			return err
		}
		texts = append(texts, sub.Transcript)
	}
	old, err := filepath.Glob(filepath.Join(s.Paths.Home, ".local", "share", programName, "opencode*.db*"))
	if err != nil {
		return err
	}
	for _, file := range append(old, sessionFile(s)) {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("restore the transcript: %w", err)
		}
	}
	for _, text := range texts {
		if err := importText(ctx, s, text); err != nil {
			return err
		}
	}
	return writePrivate(sessionFile(s), []byte(main.ID+"\n"))
}

// parseExport reads an exported session.
func parseExport(text string) (sessionInfo, []message, error) {
	var info sessionInfo
	var messages []message
	var e exported
	err := json.Unmarshal([]byte(text), &e)
	if err == nil {
		err = errors.Join(json.Unmarshal(e.Info, &info), json.Unmarshal(e.Messages, &messages))
	}
	if err == nil && !idPattern.Get().MatchString(info.ID) {
		err = fmt.Errorf("%q is no id of a session", info.ID)
	}
	if err != nil {
		return info, nil, agent.Invalid("restore a transcript as it was read: it is no export of OpenCode: %v", err)
	}
	return info, messages, nil
}

// importTime limits an import, which usually takes seconds.
const importTime = 5 * time.Minute

// importText imports a session with the program. The session's folder becomes the workspace.
func importText(ctx context.Context, s runnerscripts.Session, text string) error {
	file := filepath.Join(ownDir(s), "import.json")
	if err := writePrivate(file, []byte(text)); err != nil {
		return err
	}
	defer os.Remove(file) // harmless: the user's own history, which the next import replaces
	env := environment(s, readingOnly(s))
	argv, err := program(s.Agent, env)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, importTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], append(argv[1:], "import", file)...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = s.Paths.Workspace, env, 2*time.Second
	said, err := cmd.CombinedOutput()
	if err == nil && !bytes.Contains(said, []byte("Imported session")) {
		err = errors.New("it did not say that it did")
	}
	if err != nil {
		return agent.Failed("restore a transcript that this version of OpenCode can import: %v: %s", err, strings.TrimSpace(string(said)))
	}
	return nil
}

// replay emits the conversation of a transcript, with the recorded times.
func replay(t runnerscripts.Transcript, tr *translator) error {
	if t.Main == "" {
		return nil
	}
	info, messages, err := parseExport(t.Main)
	if err != nil {
		return err
	}
	tr.replaying = true
	tr.stored = map[string][]message{}
	for _, sub := range t.Subagents {
		_, work, err := parseExport(sub.Transcript)
		if err != nil {
			return err
		}
		tr.stored[sub.ID] = work
	}
	tr.conversations[info.ID] = runnerscripts.MainConversation
	for _, m := range messages {
		tr.message(m)
	}
	return nil
}
