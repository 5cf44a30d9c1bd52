package gemini

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	acpsdk "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/acp"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

// live reads the session's file for data that the program does not report.
type live struct {
	session   runnerscripts.Session
	workspace string
	out       agent.Sink

	mu    sync.Mutex
	id    string          // of the session
	read  int64           // bytes of the file that were read
	old   map[string]bool // the messages before the start
	calls map[string]bool // the reported calls
	heard map[string]bool // calls of the query reported by the program itself
	// begun has the prompts of the subagents that were reported.
	begun []string
	last  *runnerscripts.Usage
	took  bool // the last prompt is in the file
	// answered says that an answer is the last message in the file.
	answered bool
	lost     bool // see hasLostResult
}

// history prepares the session's file for a start and returns the stored history.
func (l *live) history() (acp.History, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := markProject(l.session, l.workspace); err != nil {
		return acp.History{}, err
	}
	c, ok, err := prepareChat(l.session)
	if err != nil || !ok {
		return acp.History{}, err
	}
	l.id, l.read, l.begun, l.old = c.id, int64(len(c.old)), nil, map[string]bool{}
	updates := 0
	for _, m := range c.messages {
		l.old[m.ID] = true
		updates += m.updates()
		for _, call := range m.calls {
			if args, ok := call.subagentArgs(); l.first(call.ID) && ok {
				l.begun = append(l.begun, args.Prompt)
			}
		}
	}
	return acp.History{SessionID: c.id, Prompts: c.prompts, Updates: updates}, nil
}

// began records the ID of a new session.
func (l *live) began(id, _, _ string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !agent.IsUUID(id) {
		return agent.Failed("install another version of the Gemini CLI (%s is tested): the id of its session is %q", testedVersion, id)
	}
	l.id, l.read = id, 0
	return joinFiles(l.session, id)
}

// ended reports what the file contains about the query that has ended.
func (l *live) ended() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last, l.took, l.answered, l.lost = nil, true, true, false
	text, err := l.news()
	if err != nil {
		l.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
			Level:   "warn",
			Message: fmt.Sprintf("the session's file cannot be read, so the input of tools and the cost of the cache are not known: %v", err),
		})
		return
	}
	news := parse(text)
	l.took, l.answered = false, news.last != "user"
	for _, m := range news.messages {
		if _, ok := m.prompt(); ok {
			l.took = true
		}
		if t := m.Tokens; t != nil && m.Type == "gemini" && !m.hidden && !l.old[m.ID] {
			if l.last == nil {
				l.last = &runnerscripts.Usage{}
			}
			*l.last = l.last.Add(runnerscripts.Usage{
				InputTokens: t.Input - t.Cached, CacheReadTokens: t.Cached, OutputTokens: t.Output + t.Thoughts,
			})
		}
		for _, c := range m.calls {
			if !m.hidden && l.first(c.ID) {
				l.tellCall(*c)
			}
		}
	}
	for id := range l.heard {
		l.lost = l.lost || !news.sent[id]
	}
	clear(l.heard)
}

// tellCall reports what the program has not reported of a call.
func (l *live) tellCall(c toolCall) {
	update := c.rest()
	if c.Status != "success" { // a denied call has no other events, so report the whole call
		update = c.whole(l.workspace)
		if c.raw == nil && l.heard[c.ID] { // the program has reported more than the file has
			update.Title = ""
		}
	}
	l.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeToolCallUpdate, update)
	l.tellSubagent(c)
}

// hasLostResult reports whether the program remembers a call of the last query without its result: it
// was stopped before it sent the result to the model.
func (l *live) hasLostResult() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// tookPrompt reports whether the last prompt is in the file.
func (l *live) tookPrompt() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.took
}

// tellSubagent reports the conversation of the subagent that a call has started, if any.
func (l *live) tellSubagent(c toolCall) {
	args, ok := c.subagentArgs()
	if !ok {
		return
	}
	stored, err := readSubagents(l.session, l.id)
	if err != nil {
		l.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
			Level: "warn", Message: fmt.Sprintf("the conversation of a subagent cannot be read: %v", err),
		})
	}
	subs := newSubagents(stored)
	for _, prompt := range l.begun {
		subs.take(prompt)
	}
	l.begun = append(l.begun, args.Prompt)
	tellSubagent(l.out, c, l.workspace, &subs)
}

// hasAnswer reports whether the last prompt has an answer in the file.
func (l *live) hasAnswer() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.answered
}

// hear records the IDs of the calls that the program reports.
func (l *live) hear(u acp.Update) {
	switch runnerscripts.EventType(u.Kind) {
	case runnerscripts.TypeToolCall, runnerscripts.TypeToolCallUpdate:
	default:
		return
	}
	var call runnerscripts.ToolCall
	if json.Unmarshal(u.Raw, &call) != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.heard == nil {
		l.heard = map[string]bool{}
	}
	l.heard[call.ToolCallID] = true
}

// first reports whether a call is new, and marks it as reported.
func (l *live) first(id string) bool {
	if l.calls[id] {
		return false
	}
	if l.calls == nil {
		l.calls = map[string]bool{}
	}
	l.calls[id] = true
	return true
}

// news returns what was added to the file since the last read.
func (l *live) news() (string, error) {
	file := keptFile(l.session, l.id)
	if _, err := os.Stat(file); err != nil {
		found, err := madeFiles(l.session, l.id)
		if err != nil || len(found) == 0 {
			return "", fmt.Errorf("there is none with the id %s: %w", l.id, os.ErrNotExist)
		}
		file = found[len(found)-1]
	}
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := f.Seek(l.read, io.SeekStart); err != nil {
		return "", err
	}
	news, err := io.ReadAll(f)
	l.read += int64(len(news))
	return string(news), err
}

// usage returns the usage of the last query: from the file, else from the reply, which does not
// separate cached tokens.
func (l *live) usage(reply acpsdk.PromptResponse) runnerscripts.Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last != nil {
		return *l.last
	}
	var meta struct {
		Quota struct {
			TokenCount struct {
				InputTokens  int64 `json:"input_tokens"`
				OutputTokens int64 `json:"output_tokens"`
			} `json:"token_count"`
		} `json:"quota"`
	}
	raw, err := json.Marshal(reply.Meta)
	if err != nil || json.Unmarshal(raw, &meta) != nil {
		return runnerscripts.Usage{}
	}
	n := meta.Quota.TokenCount
	return runnerscripts.Usage{InputTokens: n.InputTokens, OutputTokens: n.OutputTokens}
}

// failure converts an error reply. A code from 400 to 599 is the HTTP status of the model's API; for
// other codes, failure returns nil.
func failure(err *jsonrpc.Error) error {
	if err.Code < 400 || err.Code > 599 {
		return nil
	}
	// The program reports an unreachable API with code 500.
	if strings.Contains(err.Message, unreached) {
		return agent.APIFailure(0, "the model's API could not be reached: "+err.Message, "", "")
	}
	return agent.APIFailure(err.Code, err.Message, "in its environment as GEMINI_API_KEY", "")
}
