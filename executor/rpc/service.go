package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	answers "github.com/agentenv-dev/agentenv/internal/permission"
	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// The methods of the host.
const (
	MethodGetAPIKey         = "get_api_key"
	MethodRequestPermission = "request_permission"
	MethodReportMessage     = "report_message" // a notification
)

// Config configures a [Service]. The zero value delivers no key and denies everything.
type Config struct {
	// Credential returns the value of a credential that a session was granted, when an executor asks
	// for it. Its error reaches the executor, so it must not contain the value. Nil means that there
	// are none.
	Credential func(ctx context.Context, name string) (string, error)
	// Policy decides about tool calls; nil asks about all.
	Policy *permission.Policy
	// OnPermission answers what the policy does not decide. It may be called concurrently, and must
	// return when ctx is done. Nil denies.
	OnPermission func(ctx context.Context, p Permission) runnerscripts.PermissionDecision
	// PermissionTimeout denies a request that is not answered in time. Zero means a minute, a negative
	// value no limit.
	PermissionTimeout time.Duration
	// OnMessage gets what executors report, in order for each executor. The executor waits for it. Nil
	// drops the messages.
	OnMessage func(ctx context.Context, m Message)
	// Audit gets a record of each delivery, decision and refusal. It may be called concurrently. Nil
	// drops them.
	Audit  func(Record)
	Logger hclog.Logger // nil disables logging
}

// Permission is a permission request of an executor.
type Permission struct {
	Session, User string
	runnerscripts.PermissionRequest
}

// Message is what an executor reports.
type Message struct {
	Session string
	Body    json.RawMessage
}

// Outcome says how a request of an executor ended.
type Outcome string

// The outcomes.
const (
	Delivered Outcome = "delivered" // a key
	Allowed   Outcome = "allowed"
	Denied    Outcome = "denied"
	Refused   Outcome = "refused" // a token, a credential or a connection
)

// Record is an entry of the audit log. It never has a key or a token.
type Record struct {
	Time    time.Time `json:"time"`
	Session string    `json:"session,omitempty"` // empty if the token is not known
	User    string    `json:"user,omitempty"`
	Method  string    `json:"method"`
	Subject string    `json:"subject,omitempty"` // the name of the credential or of the tool
	Outcome Outcome   `json:"outcome"`
	Reason  string    `json:"reason,omitempty"`
}

// AuditTo returns an audit that writes records as JSON lines. Errors of w are dropped.
func AuditTo(w io.Writer) func(Record) {
	var mu sync.Mutex
	return func(r Record) {
		line, err := json.Marshal(r)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		_, _ = w.Write(append(line, '\n')) // a full disk must not stop the executors
	}
}

// Service answers executors. Its methods may be called from several goroutines.
type Service struct {
	// Tokens are the tokens that executors present.
	Tokens Tokens

	cfg Config

	mu      sync.Mutex
	remotes map[string]*Remote // executors over HTTP, by session
}

// NewService returns a service.
func NewService(cfg Config) *Service {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	return &Service{cfg: cfg, remotes: map[string]*Remote{}}
}

// End revokes the tokens of a session, cancels its requests and ends its connections over HTTP.
func (s *Service) End(session string) {
	s.Tokens.Revoke(session)
	s.mu.Lock()
	r := s.remotes[session]
	delete(s.remotes, session)
	s.mu.Unlock()
	if r != nil {
		r.end()
	}
}

func (s *Service) audit(r Record) {
	r.Time = time.Now()
	if s.cfg.Audit != nil {
		s.cfg.Audit(r)
	}
	s.cfg.Logger.Info("executor", "session", r.Session, "method", r.Method, "subject", r.Subject, "outcome", r.Outcome, "reason", r.Reason)
}

// Handler returns the handler for a connection whose executor belongs to session.
func (s *Service) Handler(session string) Handler {
	return func(ctx context.Context, method string, params json.RawMessage) (any, error) {
		return s.handle(ctx, session, "", method, params)
	}
}

// handle answers a request. session is that of the connection; empty leaves it to the token. bearer is
// the token of a request that has none in its parameters.
func (s *Service) handle(ctx context.Context, session, bearer, method string, raw json.RawMessage) (any, error) {
	methods := map[string]func(context.Context, grant, json.RawMessage) (any, error){
		MethodGetAPIKey: s.getAPIKey, MethodRequestPermission: s.requestPermission, MethodReportMessage: s.reportMessage,
		MethodPing: func(context.Context, grant, json.RawMessage) (any, error) { return struct{}{}, nil },
	}
	do := methods[method]
	if do == nil {
		return nil, Errorf(CodeNoMethod, "there is no method %q; there are: %s, %s, %s", method, MethodGetAPIKey, MethodRequestPermission, MethodReportMessage)
	}
	p, err := params[struct {
		Token string `json:"session_token"`
	}](raw)
	if err != nil {
		return nil, err
	}
	if p.Token == "" {
		p.Token = bearer
	}
	g, err := s.Tokens.use(p.Token, session)
	if err != nil {
		s.audit(Record{Session: session, Method: method, Outcome: Refused, Reason: err.Error()})
		return nil, Errorf(CodeToken, "%v", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)() //nolint:contextcheck // the end of the token cancels, too
	result, err := do(ctx, g, raw)
	if g.ctx.Err() != nil { // the answer comes too late
		return nil, Errorf(CodeToken, "%v: its session has ended", ErrToken)
	}
	return result, err
}

// getAPIKey delivers a key just in time.
func (s *Service) getAPIKey(ctx context.Context, g grant, raw json.RawMessage) (any, error) {
	p, err := params[struct {
		Name string `json:"credential_key"`
	}](raw)
	if err != nil {
		return nil, err
	}
	if p.Name == "" {
		return nil, Errorf(CodeInvalidParams, "give credential_key, the name of the credential")
	}
	record := Record{Session: g.Session, User: g.User, Method: MethodGetAPIKey, Subject: visible(p.Name), Outcome: Refused}
	defer func() { s.audit(record) }()
	if s.cfg.Credential == nil || !slices.Contains(g.Credentials, p.Name) {
		record.Reason = "the session was not granted it"
		return nil, Errorf(CodeCredential, "the session was granted no credential %q", record.Subject)
	}
	value, err := s.cfg.Credential(ctx, p.Name)
	if err != nil {
		record.Reason = err.Error()
		return nil, Errorf(CodeCredential, "the credential %q: %v", p.Name, err)
	}
	record.Outcome = Delivered
	return map[string]string{"api_key": value}, nil
}

// visible bounds a text of an executor for logs.
func visible(text string) string { return strings.Trim(fmt.Sprintf("%.100q", text), `"`) }

// asked are the parameters of request_permission.
type asked struct {
	ToolName  string          `json:"tool_name"`
	ToolInput json.RawMessage `json:"tool_input"`
	ToolUseID string          `json:"tool_use_id"`
	Title     string          `json:"title"`
	Kind      string          `json:"kind"`
}

// permitted is the result of request_permission: a denial is an error.
type permitted struct {
	Allow     bool   `json:"allow"`
	Scope     string `json:"scope"`
	DecidedBy string `json:"decided_by"` // policy or user
	Reason    string `json:"reason,omitempty"`
}

var errDenied = errors.New("denied")

func (s *Service) requestPermission(ctx context.Context, g grant, raw json.RawMessage) (any, error) {
	p, err := params[asked](raw)
	if err != nil {
		return nil, err
	}
	if p.ToolName == "" {
		return nil, Errorf(CodeInvalidParams, "give tool_name")
	}
	by, reason, err := s.decide(ctx, g, p)
	record := Record{Session: g.Session, User: g.User, Method: MethodRequestPermission, Subject: visible(p.ToolName), Outcome: Allowed, Reason: by + ": " + reason}
	defer func() { s.audit(record) }()
	if err == nil {
		return permitted{Allow: true, Scope: runnerscripts.ScopeOnce, DecidedBy: by, Reason: reason}, nil
	}
	record.Outcome = Denied
	failed := Errorf(CodeDenied, "permission denied: %s", reason)
	failed.Data, err = json.Marshal(map[string]string{"decided_by": by, "reason": reason})
	return nil, errors.Join(err, failed)
}

// decide returns errDenied for a tool call that is not allowed, and by whom and why it was decided.
func (s *Service) decide(ctx context.Context, g grant, p asked) (by, reason string, err error) {
	var mayDeny string
	if s.cfg.Policy != nil {
		d := s.cfg.Policy.Decide(permission.Call{Name: p.ToolName, Kind: p.Kind, Input: p.ToolInput})
		switch d.Effect {
		case permission.Allow:
			return "policy", d.Reason, nil
		case permission.Deny:
			return "policy", d.Reason, errDenied
		}
		mayDeny = d.MayDeny
	}
	if s.cfg.OnPermission == nil {
		return "user", "nothing answers permission requests here", errDenied
	}
	request := runnerscripts.PermissionRequest{
		ID: uuid.NewString(), MayDeny: mayDeny,
		ToolCall: runnerscripts.ToolCall{
			ToolCallID: p.ToolUseID, Title: p.Title, Name: p.ToolName, Kind: runnerscripts.ToolKind(p.Kind), RawInput: p.ToolInput,
		},
		Options: []runnerscripts.PermissionOption{
			{OptionID: "allow", Name: "Allow", Kind: runnerscripts.AllowOnce}, {OptionID: "reject", Name: "Reject", Kind: runnerscripts.RejectOnce},
		},
	}
	if request.ToolCall.Title == "" {
		request.ToolCall.Title = p.ToolName
	}
	policy := answers.Policy{Timeout: s.cfg.PermissionTimeout, On: func(ctx context.Context, r runnerscripts.PermissionRequest) runnerscripts.PermissionDecision {
		return s.cfg.OnPermission(ctx, Permission{Session: g.Session, User: g.User, PermissionRequest: r})
	}}
	waiting, cancel := policy.Waiting(ctx)
	defer cancel()
	d, answered, invalid := policy.Decide(waiting, request)
	switch {
	case invalid != nil:
		return "user", invalid.Error(), errDenied
	case !answered && waiting.Err() != nil:
		return "user", context.Cause(waiting).Error(), errDenied
	case !answered:
		return "user", "the request was not answered", errDenied
	}
	kind, err := answers.Check(request, d)
	if err != nil || !kind.Allows() {
		return "user", d.Message, errDenied
	}
	return "user", d.Message, nil
}

func (s *Service) reportMessage(ctx context.Context, g grant, raw json.RawMessage) (any, error) {
	p, err := params[struct {
		Message json.RawMessage `json:"message"`
	}](raw)
	if err == nil && len(p.Message) == 0 {
		err = Errorf(CodeInvalidParams, "give message")
	}
	if err != nil {
		return nil, err
	}
	if s.cfg.OnMessage != nil {
		s.cfg.OnMessage(ctx, Message{Session: g.Session, Body: p.Message})
	}
	return struct{}{}, nil
}
