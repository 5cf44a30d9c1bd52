package permission

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Mode says what happens to a tool call that no rule matches.
type Mode string

// The modes. In each of them files of the workspace may be read, unless a rule says otherwise.
const (
	ModeAsk  Mode = "ask"  // it is asked; the default
	ModeEdit Mode = "edit" // files of the workspace, but not of .git, may be written; the rest is asked
	ModePlan Mode = "plan" // files are not written, also if a rule allows it; the rest is asked
	ModeAuto Mode = "auto" // it is allowed
)

// Rules configure a [Policy]. The zero value has no rules and the mode ask.
type Rules struct {
	Mode  Mode     `json:"mode,omitempty"`
	Allow []string `json:"allow,omitempty"`
	Ask   []string `json:"ask,omitempty"`
	Deny  []string `json:"deny,omitempty"`
}

// IsZero reports whether nothing is configured.
func (r Rules) IsZero() bool {
	return r.Mode == "" && len(r.Allow)+len(r.Ask)+len(r.Deny) == 0
}

// Check returns the errors of [New].
func (r Rules) Check() error {
	_, err := New(r, Place{})
	return err
}

// Place is where an agent works.
type Place struct {
	// Workspace is the absolute path of the workspace in the sandbox.
	Workspace string
	// Servers are the names of the MCP servers. Some agents name a tool SERVER_TOOL, which says
	// only together with them that it belongs to a server.
	Servers []string
}

// Policy decides about tool calls. It is safe for concurrent use.
type Policy struct {
	mode             Mode
	place            Place
	allow, ask, deny []Rule
	also             *Policy // decides too, and the stricter decision counts; nil for none
}

// New returns the policy of the rules. Errors are fs.ErrInvalid; those of rules are [*RuleError].
func New(rules Rules, place Place) (*Policy, error) {
	p := &Policy{mode: rules.Mode, place: place}
	switch p.mode {
	case "":
		p.mode = ModeAsk
	case ModeAsk, ModeEdit, ModePlan, ModeAuto:
	default:
		return nil, fmt.Errorf("mode: %w: there is no %q; choose ask, edit, plan or auto", fs.ErrInvalid, rules.Mode)
	}
	var errs []error
	for _, list := range []struct {
		name  string
		texts []string
		to    *[]Rule
	}{{"allow", rules.Allow, &p.allow}, {"ask", rules.Ask, &p.ask}, {"deny", rules.Deny, &p.deny}} {
		for i, text := range list.texts {
			r, err := ParseRule(text)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s[%d]: %w", list.name, i, err))
				continue
			}
			if r.tool == Read || r.tool == Write {
				r.arg = strings.TrimPrefix(r.arg, strings.TrimSuffix(place.workspace(), "/")+"/")
			}
			*list.to = append(*list.to, r)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p, nil
}

// Narrow returns a policy that also has other rules: the stricter of the two decisions counts. Rules with
// neither a Mode nor Allow decide only about calls that one of them matches. The errors are those of [New].
func (p *Policy) Narrow(rules Rules) (*Policy, error) {
	if rules.IsZero() {
		return p, nil
	}
	if rules.Mode == "" && len(rules.Allow) == 0 {
		rules.Mode = ModeAuto
	}
	also, err := New(rules, p.place)
	if err != nil {
		return nil, err
	}
	also.also = p.also
	narrow := *p
	narrow.also = also
	return &narrow, nil
}

// Restricts reports whether a rule may deny or ask about a call of a portable tool.
func (p *Policy) Restricts(tool string) bool {
	for _, list := range [][]Rule{p.deny, p.ask} {
		for _, r := range list {
			if r.covers(tool) || tool == Bash && (r.tool == Read || r.tool == Write || r.tool == Fetch) {
				return true
			}
		}
	}
	return p.also != nil && p.also.Restricts(tool)
}

// DeniedTools returns the names of the tools that rules deny whatever the call is; a * in a name stands for any text. Agents always
// ask about the portable tools and those of MCP servers, so these are left out.
func (p *Policy) DeniedTools() (names []string) {
	for _, r := range p.deny {
		portable := r.tool == Bash || r.tool == Write || r.tool == Read || r.tool == Fetch
		if r.arg == "" && !portable && !strings.HasPrefix(r.tool, "mcp__") && !slices.Contains(names, r.tool) {
			names = append(names, r.tool)
		}
	}
	if p.also != nil {
		names = append(names, p.also.DeniedTools()...)
	}
	return names
}

// Effect is what happens to a tool call.
type Effect string

// The effects.
const (
	Allow Effect = "allow"
	Ask   Effect = "ask" // the user must decide; without an answer the call is denied
	Deny  Effect = "deny"
)

// Decision is the effect on a tool call and its reason.
type Decision struct {
	Effect Effect
	// Rule is the rule that decided, as it was written. It is empty if none did.
	Rule string
	// Reason says in a sentence what was decided by.
	Reason string
	// MayDeny is a deny rule that the call may be about, if the Effect is Ask for that reason. Only a user who sees the call can
	// allow it.
	MayDeny string
	// Question means that the agent asks its user for words, which no earlier answer can give.
	Question bool
}

// Decide decides about a tool call.
func (p *Policy) Decide(call Call) Decision {
	decided := Decision{Effect: Allow, Reason: "there is nothing to decide"}
	actions := p.actions(call)
	if other := p.serverTool(call.Name); other != "" && other != p.Tool(call) { // two tools have the name
		actions = append(actions, action{tool: other, innocent: true})
	}
	if own := p.ownName(call); own != "" {
		if i := slices.IndexFunc(p.allow, func(r Rule) bool { return r.allows(action{tool: own}, p.place) }); i >= 0 {
			for j := range actions {
				actions[j].allowedBy = p.allow[i].text
			}
		}
		actions = append(actions, action{tool: own, innocent: true})
	}
	mayDeny := ""
	for i, a := range actions {
		d := p.judge(a)
		mayDeny = cmp.Or(mayDeny, d.MayDeny)
		if i == 0 || d.Effect.over(decided.Effect) || d.Effect == decided.Effect && decided.Rule == "" && d.Rule != "" {
			decided = d
		}
	}
	if p.also != nil {
		d := p.also.Decide(call)
		mayDeny = cmp.Or(mayDeny, d.MayDeny)
		// An answer to what asked before must not hold for a further rule.
		if d.Effect.over(decided.Effect) || d.Effect == Ask && decided.Effect == Ask && d.Rule != "" {
			d.Question = d.Question || decided.Question
			decided = d
		}
	}
	if decided.MayDeny = ""; decided.Effect == Ask {
		decided.MayDeny = mayDeny
	}
	return decided
}

// over reports whether an effect is the stricter one.
func (e Effect) over(other Effect) bool {
	rank := map[Effect]int{Allow: 0, Ask: 1, Deny: 2}
	return rank[e] > rank[other]
}

// action is one thing that a tool call does.
type action struct {
	tool  string
	words []word   // of a command
	path  string   // of a file: cleaned; relative if it is below the workspace
	glob  string   // of the files that a search below path reads; empty for path alone
	moved bool     // the working directory of a command may be another one than the workspace
	dirs  []string // that it may be as well, as far as they are known
	host  string   // of a URL
	// unclear says why it cannot be judged; empty if it can. Then only tool is set.
	unclear string
	// innocent means that the action is allowed unless a rule denies or asks.
	innocent bool
	// allowedBy is the allow rule that names the agent's own tool; empty for none.
	allowedBy string
	// question means that the agent asks its user for words, not for permission.
	question bool
}

// certainty says whether a rule matches an action.
type certainty int

const (
	no certainty = iota
	maybe
	yes
)

// judge decides about one action.
func (p *Policy) judge(a action) Decision {
	var doubt Decision
	for _, list := range []struct {
		rules  []Rule
		effect Effect
	}{{p.deny, Deny}, {p.ask, Ask}} {
		for _, r := range list.rules {
			switch r.restricts(a, p.place) {
			case yes:
				return Decision{Effect: list.effect, Rule: r.text, MayDeny: doubt.MayDeny, Reason: fmt.Sprintf("the rule %s: %s", list.effect, r.text)}
			case maybe:
				if doubt.Rule == "" {
					doubt = Decision{Effect: Ask, Rule: r.text, Reason: "it may be what the rule is about: " + r.text}
				}
				if list.effect == Deny {
					doubt.MayDeny = cmp.Or(doubt.MayDeny, r.text)
				}
			}
		}
	}
	switch {
	case doubt.Rule != "":
		return doubt
	case a.question:
		return Decision{Effect: Ask, Reason: "it is a question to the user", Question: true}
	case p.mode == ModePlan && a.tool == Write:
		return Decision{Effect: Deny, Reason: "the mode plan changes no file"}
	case a.innocent:
		return Decision{Effect: Allow, Reason: "it is harmless"}
	case a.allowedBy != "":
		return Decision{Effect: Allow, Rule: a.allowedBy, Reason: "the rule allow: " + a.allowedBy}
	}
	for _, r := range p.allow {
		if r.allows(a, p.place) {
			return Decision{Effect: Allow, Rule: r.text, Reason: "the rule allow: " + r.text}
		}
	}
	if a.unclear != "" && (p.mode != ModeAuto || len(p.deny)+len(p.ask) > 0) {
		return Decision{Effect: Ask, Reason: a.unclear}
	}
	return p.byMode(a)
}

// ofServer reports whether a rule that names a server is about a tool of that server: mcp__a__* is not
// about the tools of the server a__b.
func (r Rule) ofServer(tool string, at Place) bool {
	name, isTool := strings.CutPrefix(tool, "mcp__")
	server := ""
	for _, s := range at.Servers {
		if strings.HasPrefix(name, s+"__") && len(s) > len(server) {
			server = s
		}
	}
	literal, _, _ := strings.Cut(strings.TrimPrefix(r.tool, "mcp__"), "*")
	if !isTool || server == "" || !strings.Contains(literal, "__") {
		return true
	}
	return strings.HasPrefix(literal, server+"__")
}

// byMode decides about an action that no rule matches.
func (p *Policy) byMode(a action) Decision {
	inside := a.path != "" && a.path[0] != '/'
	reason := "the mode " + string(p.mode)
	switch {
	case a.tool == Read && inside:
		return Decision{Effect: Allow, Reason: "files of the workspace may be read"}
	case p.mode == ModeAuto, p.mode == ModeEdit && a.tool == Write && inside && !ofGit(a.path):
		return Decision{Effect: Allow, Reason: reason}
	}
	return Decision{Effect: Ask, Reason: reason + ": no rule is about it"}
}

// restricts says whether a deny or ask rule matches an action. In doubt it is maybe.
func (r Rule) restricts(a action, at Place) certainty {
	if !r.covers(a.tool) {
		return r.mentioned(a, at)
	}
	switch {
	case r.arg == "":
		return yes
	case a.unclear != "":
		return maybe
	case r.tool == Bash:
		return restrictsCommand(r.arg, a.words)
	case r.tool == Fetch && matchHost(r.arg, a.host), r.tool != Fetch && matchPath(r.arg, a.path):
		return yes
	case r.tool != Fetch && a.glob != "" && at.overlaps(r.arg, a.glob):
		return maybe
	case r.tool != Fetch && matchPath(strings.ToLower(r.arg), strings.ToLower(a.path)): // the same file for some file systems
		return maybe
	}
	return no
}

// mentioned returns maybe if a command cannot be judged, or has a word that names the file or host of
// a rule.
func (r Rule) mentioned(a action, at Place) certainty {
	aboutFiles := r.tool == Write || r.tool == Read || r.tool == Fetch
	switch {
	case a.tool != Bash || !aboutFiles:
		return no
	case a.unclear != "":
		return maybe
	case r.arg == "":
		return no
	case r.tool != Fetch && r.mayName(a, at):
		return maybe
	}
	for _, w := range a.words {
		if r.tool == Fetch && !w.known && !a.innocent && (w.glob == "" || strings.Contains(w.glob, "{")) {
			return maybe
		}
		for _, token := range w.tokens() {
			switch r.tool {
			case Read, Write:
				for _, dir := range append([]string{""}, a.dirs...) {
					if p, ok := at.clean(dir, token); ok && matchPath(strings.ToLower(r.arg), strings.ToLower(p)) {
						return maybe
					}
				}
				if linked.MatchString(path.Clean(token)) {
					return maybe
				}
			case Fetch:
				if host, ok := hostOf(token); ok && matchHost(r.arg, host) {
					return maybe
				}
				for part := range strings.SplitSeq(token, "/") { // of a URL of any scheme, or of none
					if matchHost(r.arg, canonicalHost(strings.TrimSuffix(strings.ToLower(part), "."))) {
						return maybe
					}
				}
			}
		}
	}
	return no
}

// allows reports whether an allow rule certainly matches an action. Without an argument it allows
// also what cannot be judged, unless a rule denies or asks; see Policy.judge.
func (r Rule) allows(a action, at Place) bool {
	switch {
	case !r.covers(a.tool), !r.ofServer(a.tool, at):
		return false
	case r.arg == "":
		return true
	case a.unclear != "":
		return false
	case r.tool == Bash:
		return matchWords(words(r.arg), a.words, certain)
	case r.tool == Fetch:
		return matchHost(r.arg, a.host)
	}
	return matchPath(r.arg, a.path)
}
