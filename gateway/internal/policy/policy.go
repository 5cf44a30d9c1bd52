// Package policy decides which model calls are allowed and removes the tools that the API would
// run itself. It parses only what it needs and preserves all other bytes.
//
// An API may still fetch a resource that a message names, such as an image URL.
package policy

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Rules define which calls are passed on, and how they are changed.
type Rules struct {
	// ProviderTools are the tools that an API may run itself, by the names of [canonical]; "*"
	// means all.
	ProviderTools []string
	// Models are the allowed models, as patterns of path.Match; empty means all.
	Models []string
	// Rewrite maps a model to the model that replaces it.
	Rewrite map[string]string
}

// Call is a model call.
type Call struct {
	API  runnerscripts.ModelAPI
	Path string // below the upstream, decoded
	Body []byte
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

// Apply returns the call to pass on, its model, and the removed tools. Errors are a
// [*RefusedError].
func (r Rules) Apply(c Call) (out Call, model string, removed []string, err error) {
	body, err := parse(c.Body)
	if err != nil {
		return c, "", nil, err
	}
	if model, err = r.model(&c, &body); err != nil {
		return c, model, nil, err
	}
	if !slices.Contains(r.ProviderTools, "*") {
		if removed, err = r.tools(c.API, &body); err != nil {
			return c, model, nil, err
		}
		if strings.Contains(model, "-search-preview") || strings.HasSuffix(model, "-search-api") {
			if !r.allows("web_search") {
				return c, model, nil, refuse("the model %q searches the web, which this sandbox must not do; to allow it, name web_search in models.provider_tools", model)
			}
		}
	}
	c.Body = body.bytes()
	return c, model, removed, nil
}

// model applies Rewrite to a call and returns its model.
func (r Rules) model(c *Call, body *object) (model string, err error) {
	at := geminiModel.FindStringSubmatch(c.Path)
	if c.API == runnerscripts.APIGemini {
		if at == nil {
			return "", refuse("the path %q names no model", c.Path)
		}
		model = at[2]
	} else if raw := body.value("model"); raw != nil {
		if json.Unmarshal(raw, &model) != nil {
			return "", refuse("the call's model is no string")
		}
	}
	if other, ok := r.Rewrite[model]; ok {
		model = other
		if at != nil && c.API == runnerscripts.APIGemini {
			c.Path = at[1] + model + at[3]
		} else {
			text, err := json.Marshal(model)
			if err != nil {
				return "", err
			}
			body.set("model", text)
		}
	}
	matches := func(pattern string) bool {
		ok, err := path.Match(pattern, model)
		return ok && err == nil
	}
	if len(r.Models) > 0 && !slices.ContainsFunc(r.Models, matches) {
		return model, refuse("the model %q is not allowed here; to allow it, add it to models.allow", model)
	}
	return model, nil
}

// allows reports whether the API may run a tool itself.
func (r Rules) allows(tool string) bool {
	return slices.Contains(r.ProviderTools, tool)
}

// dated is the version at the end of a type, as in web_search_20250305 and
// web_search_preview_2025_03_11.
var dated = regexp.MustCompile(`(_preview)?(_20\d\d_?\d\d_?\d\d)?$`)

// canonical returns the name of a tool in the configuration for an API's tool type.
func canonical(kind string) string {
	kind = dated.ReplaceAllString(kind, "")
	switch kind {
	case "googleSearch", "google_search", "googleSearchRetrieval", "google_search_retrieval", "enterpriseWebSearch", "enterprise_web_search":
		return "web_search"
	case "urlContext", "url_context":
		return "web_fetch"
	case "codeExecution", "code_interpreter":
		return "code_execution"
	case "mcp_toolset", "mcp_servers":
		return "mcp"
	}
	return kind
}

// local reports whether the agent runs a tool of this type, or the tool accesses nothing.
func local(api runnerscripts.ModelAPI, kind string) bool {
	base := dated.ReplaceAllString(kind, "")
	switch api {
	case runnerscripts.APIAnthropic:
		return slices.Contains([]string{"", "custom", "bash", "text_editor", "computer", "memory", "tool_search_tool_regex", "tool_search_tool_bm25"}, base)
	case runnerscripts.APIOpenAI:
		return slices.Contains([]string{"function", "custom", "local_shell", "apply_patch", "computer_use", "computer", "tool_search"}, base)
	case runnerscripts.APIGemini:
		return slices.Contains([]string{"functionDeclarations", "function_declarations", "computerUse", "computer_use"}, kind)
	}
	return false
}

// tools removes the tools that the API would run itself, and the fields that select them.
func (r Rules) tools(api runnerscripts.ModelAPI, body *object) (removed []string, err error) {
	for _, m := range []struct{ member, tool string }{{"mcp_servers", "mcp"}, {"container", "code_execution"}, {"web_search_options", "web_search"}} {
		if body.value(m.member) != nil && !r.allows(m.tool) {
			body.remove(m.member)
			removed = append(removed, m.tool)
		}
	}
	raw := body.value("tools")
	if raw == nil || string(raw) == "null" {
		return removed, nil
	}
	list, gone, err := r.filter(api, raw)
	if err != nil {
		return nil, err
	}
	removed = append(removed, gone...)
	switch {
	case len(gone) == 0:
		return removed, nil
	case len(list) == 0:
		for _, name := range []string{"tools", "tool_choice", "toolConfig", "tool_config", "parallel_tool_calls"} {
			body.remove(name)
		}
		return removed, nil
	}
	body.set("tools", join('[', list, ']'))
	if choice := body.value("tool_choice"); choice != nil && r.choosesOne(choice, gone) {
		body.remove("tool_choice")
	}
	return removed, nil
}

// choosesOne reports whether a choice names a tool that was removed.
func (r Rules) choosesOne(choice json.RawMessage, gone []string) bool {
	var c struct {
		Type string `json:"type"`
		Name string `json:"name"`
	}
	if json.Unmarshal(choice, &c) != nil {
		return false // "auto", "required": there are other tools
	}
	return slices.Contains(gone, canonical(c.Type)) || c.Type == "tool" && slices.Contains(gone, canonical(c.Name)) || c.Type == "allowed_tools"
}

// filter returns the tools of a list that are kept, unchanged, and the names of the removed
// ones.
func (r Rules) filter(api runnerscripts.ModelAPI, raw json.RawMessage) (stay []json.RawMessage, gone []string, err error) {
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, nil, refuse("the call's tools are no list")
	}
	for _, one := range list {
		tool, err := parse(one)
		if err != nil {
			return nil, nil, refuse("a tool of the call: %v", err)
		}
		if api == runnerscripts.APIGemini {
			before := len(gone)
			for _, m := range slices.Clone(tool.members) {
				if !local(api, m.name) && !r.allows(canonical(m.name)) {
					tool.remove(m.name)
					gone = append(gone, canonical(m.name))
				}
			}
			if len(tool.members) > 0 || before == len(gone) {
				stay = append(stay, tool.bytes())
			}
			continue
		}
		kind, keep, err := r.keeps(api, &tool)
		switch {
		case err != nil:
			return nil, nil, err
		case keep:
			stay = append(stay, one)
		default:
			gone = append(gone, canonical(kind))
		}
	}
	return stay, gone, nil
}

// keeps reports whether a tool is kept.
func (r Rules) keeps(api runnerscripts.ModelAPI, tool *object) (kind string, keep bool, err error) {
	if raw := tool.value("type"); raw != nil && string(raw) != "null" {
		if json.Unmarshal(raw, &kind) != nil {
			return "", false, refuse("the type of a tool is no string")
		}
	}
	if api == runnerscripts.APIOpenAI {
		switch kind {
		case "namespace": // a group of others
			_, gone, err := r.filter(api, tool.value("tools"))
			return strings.Join(gone, ","), len(gone) == 0, err
		case "shell": // run by the agent, unless it runs in a container of the API
			var at struct {
				Type string `json:"type"`
			}
			if raw := tool.value("environment"); raw != nil && json.Unmarshal(raw, &at) != nil || !slices.Contains([]string{"", "local"}, at.Type) {
				return "code_execution", r.allows("code_execution"), nil
			}
			return kind, true, nil
		}
	}
	return kind, local(api, kind) || r.allows(canonical(kind)), nil
}
