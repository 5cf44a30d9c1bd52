// Package policy decides which model calls are allowed, removes the tools that the API would run
// itself, and refuses addresses in messages that the API would fetch. It reads a call in one pass
// of bounded depth, values and memory, and preserves the bytes of what it does not change.
//
// It knows the APIs of Anthropic, OpenAI and Gemini. A server that speaks one of them may run or
// fetch by other members or models.
package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const (
	maxMembers     = 1000 // of a call
	maxToolMembers = 64
	maxTools       = 10_000
)

// Rules define which calls are passed on, and how they are changed.
type Rules struct {
	// ProviderTools are the tools that an API may run itself, by the names of [canonical]; "*"
	// means all. With web_fetch the API may also fetch addresses in messages.
	ProviderTools []string
	// Models are the allowed models, as patterns of path.Match; empty means all.
	Models []string
	// Rewrite maps a model to the model that replaces it.
	Rewrite map[string]string
	// Metered refuses calls whose answer cannot be counted in tokens, and makes a streamed
	// answer report its usage.
	Metered bool
}

// Call is a model call.
type Call struct {
	API  runnerscripts.ModelAPI
	Path string // below the upstream, decoded
	Body []byte
}

// Passed is a call to pass on.
type Passed struct {
	Call
	Model   string
	Removed []string // tools, each once
	// MaxOutput is how many tokens the API may generate, as the call says; zero if it says
	// nothing. Answers is how many answers it generates at once.
	MaxOutput, Answers int64
	// Stored reports that the call continues a conversation that the API has stored.
	Stored bool
}

// RefusedError says why a call is refused.
type RefusedError struct {
	Message string // with advice
}

func (r *RefusedError) Error() string { return r.Message }

func refuse(format string, args ...any) error { return &RefusedError{fmt.Sprintf(format, args...)} }

// Check returns an error if a pattern is invalid.
func (r Rules) Check() error {
	for _, pattern := range r.Models {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("the pattern %q: %w", pattern, err)
		}
	}
	return nil
}

// geminiModel finds the model in a path of Gemini's API.
var geminiModel = regexp.MustCompile(`^(/v1[a-z]*/models/)([^:/]+)(:[A-Za-z]+)$`)

// pass is the one pass over a call.
type pass struct {
	scanner
	Rules
	api   runnerscripts.ModelAPI
	body  object
	limit object // Gemini's settings, which limit the output

	tools    int      // read so far
	kept     [][]byte // of the call's tools
	filtered bool     // kept replaces the call's tools
	removed  []string
	strict   bool // no member is opaque, and any may have any name
}

// Apply returns the call to pass on. Errors are a [*RefusedError], or the cause of ctx.
func (r Rules) Apply(ctx context.Context, c Call) (out Passed, err error) {
	p := &pass{Rules: r, api: c.API, scanner: scanner{data: c.Body, stop: func() error { return context.Cause(ctx) }}}
	if p.body, err = p.members("the body", maxMembers, p.member); err != nil {
		return out, err
	}
	if p.next(); p.pos < len(p.data) {
		return out, refuse("the body has more than one JSON object")
	}
	out.Call = c
	if err := p.model(&out); err != nil {
		return out, err
	}
	if err := p.searches(out.Model); err != nil {
		return out, err
	}
	p.edit()
	if err := p.measure(&out); err != nil {
		return out, err
	}
	if p.body.changed {
		out.Body = p.body.bytes()
	}
	out.Removed = p.removed
	return out, nil
}

// member reads a member of the call.
func (p *pass) member(name string) (err error) {
	switch {
	case name == "generationConfig" || name == "generation_config":
		if p.limit.whole != nil {
			return refuse("the call has both generationConfig and generation_config; send one")
		}
		if p.next() == '{' {
			p.limit, err = p.members("the call's "+name, maxMembers, nil)
			return err
		}
	case p.allows("*"):
	case name == "tools" && p.next() != 'n':
		kept, gone, err := p.filter()
		p.kept, p.filtered = kept, len(gone) > 0
		p.remove(gone...)
		return err
	case conversation[name] && !p.allows("web_fetch"):
		return p.content(name)
	}
	return p.value()
}

// remove adds tools to the removed ones.
func (p *pass) remove(tools ...string) {
	p.removed = append(p.removed, tools...)
	slices.Sort(p.removed)
	p.removed = slices.Compact(p.removed)
}

// model applies Rewrite to the call.
func (p *pass) model(out *Passed) error {
	at := geminiModel.FindStringSubmatch(out.Path)
	if p.api == runnerscripts.APIGemini {
		if at == nil {
			return refuse("the path %q names no model", out.Path)
		}
		out.Model = at[2]
	} else {
		var ok bool
		if out.Model, ok = p.body.text("model"); !ok {
			return refuse("the call's model is no string of at most %d bytes", maxName)
		}
	}
	if other, ok := p.Rewrite[out.Model]; ok {
		out.Model = other
		if p.api == runnerscripts.APIGemini {
			out.Path = at[1] + other + at[3]
		} else {
			text, err := json.Marshal(other)
			if err != nil {
				return err
			}
			p.body.set("model", text)
		}
	}
	matches := func(pattern string) bool {
		ok, err := path.Match(pattern, out.Model)
		return ok && err == nil
	}
	if len(p.Models) > 0 && !slices.ContainsFunc(p.Models, matches) {
		return refuse("the model %q is not allowed here; to allow it, add it to models.allow", out.Model)
	}
	return nil
}

// searches refuses a model that searches the web.
func (p *pass) searches(model string) error {
	if (strings.Contains(model, "-search-preview") || strings.HasSuffix(model, "-search-api")) && !p.allows("web_search") {
		return refuse("the model %q searches the web, which this sandbox must not do; to allow it, name web_search in models.provider_tools", model)
	}
	return nil
}

// measure reads how much the API may generate. With Metered it refuses calls whose usage nobody
// would learn.
func (p *pass) measure(out *Passed) error {
	limits, tokens, answers := &p.body, []string{"max_tokens"}, []string(nil)
	switch {
	case p.api == runnerscripts.APIGemini:
		limits, tokens, answers = &p.limit, []string{"maxOutputTokens", "max_output_tokens"}, []string{"candidateCount", "candidate_count"}
	case strings.HasSuffix(out.Path, "/chat/completions"):
		tokens, answers = []string{"max_tokens", "max_completion_tokens"}, []string{"n"}
	case p.api == runnerscripts.APIOpenAI:
		tokens = []string{"max_output_tokens"}
	}
	for _, name := range tokens {
		out.MaxOutput = max(out.MaxOutput, limits.number(name, math.MaxInt32))
	}
	out.Answers = 1
	for _, name := range answers {
		out.Answers = max(out.Answers, limits.number(name, math.MaxInt16))
	}
	for _, name := range []string{"previous_response_id", "conversation", "prompt", "cachedContent", "cached_content"} {
		out.Stored = out.Stored || p.body.value(name) != nil
	}
	if !p.Metered || p.api != runnerscripts.APIOpenAI {
		return nil
	}
	if value := string(p.body.value("background")); value != "" && value != "false" && value != "null" {
		return refuse("a call in the background does not tell its tokens, and the budget counts them; send it without background, or limit budget.*.requests only")
	}
	if !strings.HasSuffix(out.Path, "/chat/completions") || string(p.body.value("stream")) != "true" {
		return nil
	}
	options := object{changed: true}
	if value := p.body.value("stream_options"); value != nil && string(value) != "null" {
		var err error
		s := &scanner{data: value, stop: p.stop}
		if options, err = s.members("the call's stream_options", maxToolMembers, nil); err != nil {
			return err
		}
	}
	if string(options.value("include_usage")) != "true" {
		options.set("include_usage", []byte("true"))
		p.body.set("stream_options", options.bytes())
	}
	return nil
}
