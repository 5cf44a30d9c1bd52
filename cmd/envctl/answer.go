package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/form"
	"github.com/agentenv-dev/agentenv/internal/permission"
	"github.com/agentenv-dev/agentenv/internal/visible"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// answerFlags are the flags of answer.
type answerFlags struct {
	target
	request string
	asJSON  bool
}

// answerTimeout is how long an agent may take to accept an answer.
const answerTimeout = time.Minute

// The answers beside options and words.
const (
	answerAllow  = "allow"
	answerReject = "reject"
)

func (a *app) newAnswerCmd() *cobra.Command {
	f := &answerFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "answer [flags] ID [ANSWER...]",
		Short: "Answer what an agent asks",
		Long: `Answer the question of an agent that waits, without following it; without ANSWER, print the
question. 'envctl ls' shows which agents wait. ID is that of a kept sandbox, or of a session
in one; the program that runs it may be another one, or have died. In a sandbox that is not
kept only its own program can answer.

ANSWER is allow, reject, the number or the ID of an option, or words: the reason of a rejection. If
the agent asks for words, give one ANSWER for each of its questions. With a server it may be
always or never: that holds in later sessions too, see 'envctl permissions'.

Of several questions it answers the oldest, or that of --request. The first answer counts. The
exit status is 1 if no question waits, or another answer came first.`,
		Example: `  envctl answer 3f2a
  envctl answer 3f2a allow
  envctl answer 3f2a 2
  envctl answer 3f2a "Use the test database instead"
  envctl answer --json 3f2a | jq -r .title`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0], args[1:]) },
	}
	f.flags(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.request, "request", "", "ID of the question, if there are several")
	fl.BoolVar(&f.asJSON, "json", false, "print questions as JSON, one a line")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begin string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 1 {
			return []cobra.Completion{answerAllow, answerReject}, cobra.ShellCompDirectiveNoFileComp
		}
		return f.completeIDs(1)(cmd, args, begin)
	}
	return cmd
}

func (f *answerFlags) run(ctx context.Context, id string, answer []string) (err error) {
	if slices.Contains(answer, "") {
		return usagef("an answer is empty, perhaps from a variable that is not set; give %s, %s, an option or words", answerAllow, answerReject)
	}
	if f.app.server != "" {
		return f.answerServed(ctx, id, answer)
	}
	cfg, found, err := f.locateSession(ctx, id)
	if err != nil {
		return err
	}
	if !found.info.Kept {
		return notAnswerable(found.info)
	}
	var asked environment.Waiting
	var decision runnerscripts.PermissionDecision
	var given atomic.Bool
	cfg.PermissionTimeout = -1
	cfg.OnPermission = func(ctx context.Context, req environment.PermissionRequest) environment.PermissionDecision {
		if req.ID != asked.ID || ctx.Err() != nil {
			return environment.PermissionDecision{} // another program answers it
		}
		given.Store(true)
		return decision
	}
	env, err := environment.Attach(ctx, cfg, found.id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	waiting, err := env.Waiting(ctx)
	if err != nil {
		return err
	}
	if f.request != "" {
		waiting = slices.DeleteFunc(waiting, func(w environment.Waiting) bool { return w.ID != f.request })
	}
	switch {
	case len(waiting) == 0 && f.request != "":
		return fmt.Errorf("the question %s does not wait for an answer any more; 'envctl logs %s' says what became of it", f.request, found.id)
	case len(waiting) == 0:
		return fmt.Errorf("no question waits for an answer in %s; 'envctl ls' shows where one does", found.id)
	case len(answer) == 0:
		return f.show(waiting, found.id, env.Primitive().Paths().Workspace)
	}
	asked = waiting[0]
	if decision, err = answerTo(*asked.Request, answer); err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	decision.By = userName()
	if decision.Scope != "" && !env.KeepsAnswers() {
		return usagef("%q works in the program that runs the query, and with a server; answer %s, or %s", answer[0], answerAllow, answerReject)
	}
	bounded, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if err := give(bounded, env, asked, decision, &given); err != nil {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("the agent did not take the answer within %v: %w; 'envctl logs %s' may say why", answerTimeout, err, found.id)
		}
		return err
	}
	text := answered(decision, asked)
	if !found.info.QueryOwned {
		text += "; its program has gone: go on with 'envctl attach " + whereFlag(found.sandbox) + found.id + "'"
	}
	return f.app.err.Row(term.Plain(text))
}

// answered says what an answer has done. The words of a rejection may be a mistyped answer.
func answered(d runnerscripts.PermissionDecision, to environment.Waiting) string {
	text := d.Kind.Effect() + ": " + to.Title
	if d.Message != "" && !d.Kind.Allows() {
		text += fmt.Sprintf(" (with the reason %q)", d.Message)
	}
	return text
}

// notAnswerable returns the error for a sandbox in which only the program of the query can answer.
func notAnswerable(s environment.SandboxInfo) error {
	who := "the program that runs it"
	if s.QueryBy != "" {
		who += ", " + s.QueryBy + ","
	}
	switch queryKnown(s) {
	case queryWaiting:
		return fmt.Errorf("the sandbox %s is not kept, so only %s can answer %q; make sandboxes with --keep to answer from elsewhere", s.ID, who, s.Waiting[0].Title)
	case queryRunning:
		return fmt.Errorf("no question waits for an answer in %s", s.ID)
	}
	return fmt.Errorf("no question waits for an answer in %s: no query runs there", s.ID)
}

// give answers a question and waits until the agent has taken the answer. given says that this
// program has answered it; else an equal answer is that of another one.
func give(ctx context.Context, env *environment.Environment, asked environment.Waiting, d runnerscripts.PermissionDecision, given *atomic.Bool) error {
	for ev, err := range env.FollowQuery(ctx, 0) {
		if err != nil {
			return err
		}
		if ev.Type != runnerscripts.TypePermissionResolved {
			continue
		}
		done, err := runnerscripts.Payload[runnerscripts.PermissionResolved](ev)
		switch {
		case err != nil || done.ID != asked.ID:
			continue
		case done.Kind == d.Kind && given.Load():
			return nil
		case done.Kind == "":
			return fmt.Errorf("too late: the agent has withdrawn the question %q", asked.Title)
		}
		return fmt.Errorf("too late: the question %q was answered already: %s", asked.Title, done.Kind.Effect())
	}
	return fmt.Errorf("too late: the query ended before the question %q was answered", asked.Title)
}

// answerTo returns the decision that an answer of the user means.
func answerTo(req runnerscripts.PermissionRequest, answer []string) (d runnerscripts.PermissionDecision, err error) {
	only := answer[0]
	asked, isForm := form.Of(req)
	switch {
	case len(answer) == 1 && only == answerReject:
		d = req.Reject("")
	case isForm:
		if len(answer) != len(asked.Questions) {
			return d, fmt.Errorf("the agent asks %s; give an answer to each, or %s", plural(len(asked.Questions), "question"), answerReject)
		}
		given := make([][]string, len(answer))
		for i, q := range asked.Questions {
			if given[i], err = formAnswers(q, answer[i]); err != nil {
				return d, err
			}
		}
		d, err = asked.Decision(req, given)
	case len(answer) > 1:
		return d, fmt.Errorf("there is one question, and %d answers; quote an answer of several words", len(answer))
	case only == answerAllow:
		d = req.Allow()
	default:
		if i := slices.IndexFunc(req.Options, func(o runnerscripts.PermissionOption) bool { return o.OptionID == only }); i >= 0 {
			d = runnerscripts.PermissionDecision{OptionID: only, Kind: req.Options[i].Kind}
			break
		}
		d, err = choose(req.Options, only)
	}
	if err == nil {
		d.Kind, err = permission.Check(req, d)
	}
	return d, err
}

// show prints questions and how to answer them.
func (f *answerFlags) show(waiting []environment.Waiting, id, workspace string) error {
	if f.asJSON {
		type question struct {
			ID      string                         `json:"id"`
			Title   string                         `json:"title"`
			Since   time.Time                      `json:"since,omitzero"` // a server does not say it
			Request *environment.PermissionRequest `json:"request"`
		}
		var list []question
		for _, w := range waiting {
			list = append(list, question{w.ID, w.Title, w.Since, w.Request})
		}
		return printLines(f.app, list)
	}
	for _, w := range waiting {
		prompts := []prompt{permissionPrompt(*w.Request, workspace, false)}
		if asked, ok := form.Of(*w.Request); ok {
			prompts = prompts[:0]
			for i := range asked.Questions {
				prompts = append(prompts, formPrompt(asked, i))
			}
		}
		for _, about := range prompts {
			q := &questionText{width: f.app.out.Width() - utf8.RuneCountInString(mark) - 1, most: about.most}
			since := ""
			if !w.Since.IsZero() { // a server does not say it
				since = " since " + w.Since.Local().Format(time.DateTime) + ","
			}
			q.add(term.Bold(about.title), term.Dim(since+" question "+visible.Line(w.ID)))
			about.rows(q)
			if err := f.app.out.Println(q.spans...); err != nil {
				return err
			}
		}
	}
	return f.app.err.Println(term.Dim("answer with 'envctl answer " + id + " allow', reject, the number of an option, or what the agent should do instead"))
}
