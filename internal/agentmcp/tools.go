package agentmcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentenv-dev/agentenv/environment"
)

// How many seconds a call waits. Some clients end a call after a minute.
const (
	defaultWait = 50
	maxWait     = 600
)

const instructions = `Start other agents, each in a sandbox of its own, with its own files: an agent knows nothing of your
conversation and sees none of your files, so put all that it needs into the prompt. list_agent_blueprints has the agents;
start_agent_session starts one and waits for its result. A session stays for further prompts (resume_agent_session) until you
stop it or you end yourself.`

// The inputs of the tools.
type (
	noInput struct{}
	waiting struct {
		Wait *int `json:"wait_seconds,omitempty" jsonschema:"how long to wait for the result, at most 600; default 50. When the time is over the agent works on: call get_agent_session_result"`
	}
	startInput struct {
		Agent  string `json:"agent_blueprint_name" jsonschema:"the agent, by its name in list_agent_blueprints"`
		Prompt string `json:"prompt" jsonschema:"the task, with all that the agent needs to know; up to 100000 characters"`
		Mode   string `json:"mode,omitempty" jsonschema:"sync (default) waits for the result, async returns at once"`
		waiting
	}
	resumeInput struct {
		ID     string `json:"session_id"`
		Prompt string `json:"prompt" jsonschema:"up to 100000 characters; it is queued while the agent works"`
		Mode   string `json:"mode,omitempty" jsonschema:"sync (default) waits for the result, async returns at once"`
		waiting
	}
	sessionInput struct {
		ID string `json:"session_id"`
	}
	resultInput struct {
		ID string `json:"session_id"`
		waiting
	}
	followInput struct {
		ID    string `json:"session_id"`
		After uint64 `json:"after_event,omitempty" jsonschema:"leave out events up to this one; default 0"`
		waiting
	}
)

// The outputs of the tools.
type (
	blueprint struct {
		Name        string   `json:"name"`
		Description string   `json:"description,omitempty"`
		Tags        []string `json:"tags,omitempty"`
		Agent       string   `json:"agent,omitempty" jsonschema:"its program"`
		Model       string   `json:"model,omitempty"`
		Sandbox     string   `json:"sandbox,omitempty" jsonschema:"the kind of its sandbox"`
		Error       string   `json:"error,omitempty" jsonschema:"why it cannot be started"`
	}
	blueprints struct {
		Blueprints []blueprint `json:"agent_blueprints"`
	}
	sessions struct {
		Sessions []report `json:"sessions"`
	}
	followed struct {
		Status string `json:"status"`
		Lines  []line `json:"events"`
		Last   uint64 `json:"last_event" jsonschema:"give it as after_event to go on"`
	}
	deleted struct {
		Deleted int `json:"deleted"`
	}
)

// newServer returns the server of the protocol.
func (f *family) newServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "agentenv", Title: "agentenv", Version: f.owner.cfg.Version}, &mcp.ServerOptions{
		Instructions: instructions, Capabilities: &mcp.ServerCapabilities{},
	})
	reads := &mcp.ToolAnnotations{ReadOnlyHint: true}
	mcp.AddTool(s, &mcp.Tool{
		Name: "list_agent_blueprints", Annotations: reads,
		Description: "List the agents that you can start, with what each is for.",
	}, f.listBlueprints)
	mcp.AddTool(s, &mcp.Tool{
		Name: "list_agent_sessions", Annotations: reads,
		Description: "List the sessions of agents that you have started, the latest first.",
	}, f.listSessions)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "start_agent_session",
		Description: "Start an agent in a sandbox of its own with a task. By default it waits for the result; with mode async, or when the time is over, it returns the session_id and the agent works on.",
	}, f.startSession)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "resume_agent_session",
		Description: "Send a further prompt to an agent that you have started. It remembers the conversation and has its files.",
	}, f.resumeSession)
	mcp.AddTool(s, &mcp.Tool{
		Name: "get_agent_session_status", Annotations: reads,
		Description: "Say how far an agent is, at once.",
	}, f.sessionStatus)
	mcp.AddTool(s, &mcp.Tool{
		Name: "get_agent_session_result", Annotations: reads,
		Description: "Wait for an agent and return what it has said at the end of its task, up to 50000 characters.",
	}, f.sessionResult)
	mcp.AddTool(s, &mcp.Tool{
		Name: "follow_agent_session", Annotations: reads,
		Description: "Return what an agent says and does after an event, and wait for the next if there is none yet.",
	}, f.followSession)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "stop_agent_session",
		Description: "Interrupt an agent and end its sandbox. Its result stays, and resume_agent_session starts it again with its files.",
	}, f.stopSession)
	mcp.AddTool(s, &mcp.Tool{
		Name:        "delete_all_agent_sessions",
		Description: "End all agents that you have started and remove their sessions, with their files and results.",
	}, f.deleteSessions)
	return s
}

// tagged reports whether an agent has all tags that a request asks for.
func tagged(req *mcp.CallToolRequest, d environment.Delegate) bool {
	if req.Extra == nil {
		return true
	}
	for tag := range strings.SplitSeq(req.Extra.Header.Get(headerTags), ",") {
		if tag = strings.TrimSpace(tag); tag != "" && !slices.Contains(d.Tags, tag) {
			return false
		}
	}
	return true
}

func (f *family) listBlueprints(_ context.Context, req *mcp.CallToolRequest, _ noInput) (*mcp.CallToolResult, blueprints, error) {
	out := blueprints{Blueprints: []blueprint{}}
	agents := f.of.Config.Delegation.Agents
	for _, name := range slices.Sorted(maps.Keys(agents)) {
		d := agents[name]
		if !tagged(req, d) {
			continue
		}
		b := blueprint{Name: name, Description: d.Description, Tags: d.Tags}
		cfg, err := f.configure(name)
		if err != nil {
			b.Error = err.Error()
		} else {
			b.Agent, b.Model, b.Sandbox = cfg.Agent.Name, cfg.Agent.Model, cfg.Sandbox.Type
		}
		out.Blueprints = append(out.Blueprints, b)
	}
	return nil, out, nil
}

func (f *family) listSessions(ctx context.Context, _ *mcp.CallToolRequest, _ noInput) (*mcp.CallToolResult, sessions, error) {
	out := sessions{Sessions: []report{}}
	all, err := f.records(ctx)
	if err != nil {
		return nil, out, err
	}
	for _, rec := range all {
		r, err := f.report(ctx, rec.ID, rec.Metadata[metaAgent], false)
		if err != nil {
			return nil, out, err
		}
		out.Sessions = append(out.Sessions, r)
	}
	return nil, out, nil
}

// span returns how long a call waits.
func (w waiting) span(mode string) (time.Duration, error) {
	seconds := defaultWait
	if w.Wait != nil {
		seconds = *w.Wait
	}
	switch {
	case seconds < 0 || seconds > maxWait:
		return 0, fmt.Errorf("wait_seconds is %d; give 0 to %d", seconds, maxWait)
	case mode == "async":
		return 0, nil
	case mode != "" && mode != "sync":
		return 0, fmt.Errorf("there is no mode %q; give sync or async", mode)
	}
	return time.Duration(seconds) * time.Second, nil
}

// finish waits for a session and returns its report.
func (f *family) finish(ctx context.Context, req *mcp.CallToolRequest, c *child, d time.Duration) (*mcp.CallToolResult, report, error) {
	f.await(ctx, c, d, f.progress(ctx, req))
	r, err := f.report(ctx, c.session.ID(), c.agent, true)
	return nil, r, errors.Join(err, r.failure())
}

// failure returns the error of a session whose last query has failed.
func (r report) failure() error {
	if r.Status != statusFailed {
		return nil
	}
	return fmt.Errorf("the agent %s (session %s) failed: %s", r.Agent, r.SessionID, r.Error)
}

// progress returns a function that reports progress to the client of a request, if that wants it.
func (f *family) progress(ctx context.Context, req *mcp.CallToolRequest) func(string) {
	token, n := req.Params.GetProgressToken(), 0.0
	return func(message string) {
		if token == nil {
			return
		}
		n++
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: n, Message: cut(message, maxLineText)})
	}
}

func (f *family) startSession(ctx context.Context, req *mcp.CallToolRequest, in startInput) (*mcp.CallToolResult, report, error) {
	d, err := in.span(in.Mode)
	if err != nil {
		return nil, report{}, err
	}
	if delegate, ok := f.of.Config.Delegation.Agents[in.Agent]; ok && !tagged(req, delegate) {
		return nil, report{}, fmt.Errorf("the agent %q has not the tags %s", in.Agent, req.Extra.Header.Get(headerTags))
	}
	c, err := f.start(ctx, in.Agent, in.Prompt)
	if err != nil {
		return nil, report{}, err
	}
	return f.finish(ctx, req, c, d)
}

func (f *family) resumeSession(ctx context.Context, req *mcp.CallToolRequest, in resumeInput) (*mcp.CallToolResult, report, error) {
	d, err := in.span(in.Mode)
	if err != nil {
		return nil, report{}, err
	}
	c, err := f.resume(ctx, in.ID, in.Prompt)
	if err != nil {
		return nil, report{}, err
	}
	return f.finish(ctx, req, c, d)
}

func (f *family) sessionStatus(ctx context.Context, _ *mcp.CallToolRequest, in sessionInput) (*mcp.CallToolResult, report, error) {
	_, name, err := f.find(ctx, in.ID)
	if err != nil {
		return nil, report{}, err
	}
	r, err := f.report(ctx, in.ID, name, false)
	return nil, r, err
}

func (f *family) sessionResult(ctx context.Context, req *mcp.CallToolRequest, in resultInput) (*mcp.CallToolResult, report, error) {
	d, err := in.span("")
	if err != nil {
		return nil, report{}, err
	}
	c, name, err := f.find(ctx, in.ID)
	if err != nil {
		return nil, report{}, err
	}
	if c != nil {
		return f.finish(ctx, req, c, d)
	}
	r, err := f.report(ctx, in.ID, name, true)
	return nil, r, errors.Join(err, r.failure())
}

func (f *family) followSession(ctx context.Context, _ *mcp.CallToolRequest, in followInput) (*mcp.CallToolResult, followed, error) {
	out := followed{Lines: []line{}, Last: in.After}
	d, err := in.span("")
	if err != nil {
		return nil, out, err
	}
	c, name, err := f.find(ctx, in.ID)
	if err != nil {
		return nil, out, err
	}
	found, err := f.follow(ctx, in.ID, c, in.After, d)
	if err != nil {
		return nil, out, err
	}
	r, err := f.report(ctx, in.ID, name, false)
	if err != nil {
		return nil, out, err
	}
	out.Status, out.Last = r.Status, found.last
	out.Lines = append(out.Lines, found.texts()...)
	return nil, out, nil
}

func (f *family) stopSession(ctx context.Context, _ *mcp.CallToolRequest, in sessionInput) (*mcp.CallToolResult, report, error) {
	_, name, err := f.find(ctx, in.ID)
	if err == nil {
		err = f.stop(ctx, in.ID)
	}
	if err != nil {
		return nil, report{}, err
	}
	r, err := f.report(ctx, in.ID, name, true)
	return nil, r, err
}

func (f *family) deleteSessions(ctx context.Context, _ *mcp.CallToolRequest, _ noInput) (*mcp.CallToolResult, deleted, error) {
	n, err := f.removeAll(ctx)
	return nil, deleted{n}, err
}
