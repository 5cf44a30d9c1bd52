package policy

import (
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// allows reports whether the API may run a tool itself.
func (r Rules) allows(tool string) bool {
	return slices.Contains(r.ProviderTools, tool) || slices.Contains(r.ProviderTools, "*")
}

// undated returns a type without the version at its end, as in web_search_20250305 and
// web_search_preview_2025_03_11.
func undated(kind string) string {
	for _, layout := range []string{"_20060102", "_2006_01_02"} {
		at := max(0, len(kind)-len(layout))
		if !strings.HasPrefix(kind[at:], "_20") {
			continue
		}
		if _, err := time.Parse(layout, kind[at:]); err == nil {
			kind = kind[:at]
			break
		}
	}
	return strings.TrimSuffix(kind, "_preview")
}

// canonical returns the name of a tool in the configuration for an API's tool type.
func canonical(kind string) string {
	kind = undated(kind)
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
	base := undated(kind)
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

// edit removes the tools that the API would run itself, and the fields that select them.
func (p *pass) edit() {
	for _, m := range []struct{ member, tool string }{{"mcp_servers", "mcp"}, {"container", "code_execution"}, {"web_search_options", "web_search"}} {
		if !p.allows(m.tool) && p.body.remove(m.member) {
			p.remove(m.tool)
		}
	}
	switch {
	case !p.filtered:
	case len(p.kept) == 0:
		p.body.remove("tools", "tool_choice", "toolConfig", "tool_config", "parallel_tool_calls")
	default:
		p.body.set("tools", join('[', p.kept, ']'))
		if p.choosesOne() {
			p.body.remove("tool_choice")
		}
	}
}

// choosesOne reports whether the call's choice names a tool that was removed.
func (p *pass) choosesOne() bool {
	s := &scanner{data: p.body.value("tool_choice"), stop: p.stop}
	if s.next() != '{' {
		return false // "auto", "required": there are other tools
	}
	choice, err := s.members("tool_choice", maxToolMembers, nil)
	if err != nil {
		return true // nobody knows what it chooses
	}
	kind, _ := choice.text("type")
	name, _ := choice.text("name")
	return slices.Contains(p.removed, canonical(kind)) || kind == "tool" && slices.Contains(p.removed, canonical(name)) || kind == "allowed_tools"
}

// filter reads a list of tools. It returns those that are kept, unchanged, and the names of the
// removed ones.
func (p *pass) filter() (kept [][]byte, gone []string, err error) {
	if p.next() != '[' {
		return nil, nil, refuse("the call's tools are no list")
	}
	err = p.array(func() error {
		if p.tools++; p.tools > maxTools {
			return refuse("the call has more than %d tools", maxTools)
		}
		var inner []string // removed from a namespace
		tool, err := p.members("a tool of the call", maxToolMembers, func(name string) (err error) {
			if name == "tools" && p.api == runnerscripts.APIOpenAI && p.next() == '[' {
				_, inner, err = p.filter()
				return err
			}
			return p.value()
		})
		if err != nil {
			return err
		}
		keep, removed, err := p.keeps(&tool, inner)
		if keep {
			kept = append(kept, tool.bytes())
		}
		gone = append(gone, removed...)
		return err
	})
	return kept, gone, err
}

// keeps reports whether a tool is kept, and what is removed from it or with it. inner is what
// was removed from the tools of a namespace.
func (p *pass) keeps(tool *object, inner []string) (keep bool, gone []string, err error) {
	if p.api == runnerscripts.APIGemini { // each member is a tool
		empty := len(tool.members) == 0
		tool.members = slices.DeleteFunc(tool.members, func(m member) bool {
			if local(p.api, m.name) || p.allows(canonical(m.name)) {
				return false
			}
			gone = append(gone, canonical(m.name))
			return true
		})
		tool.changed = len(gone) > 0
		return empty || len(tool.members) > 0, gone, nil
	}
	kind, ok := tool.text("type")
	if !ok {
		return false, nil, refuse("the type of a tool is no string of at most %d bytes", maxName)
	}
	if p.api == runnerscripts.APIOpenAI {
		switch kind {
		case "namespace": // a group of others
			return len(inner) == 0, inner, nil
		case "shell": // run by the agent, unless it runs in a container of the API
			if p.allows("code_execution") || runsLocally(tool.value("environment"), p.stop) {
				return true, nil, nil
			}
			return false, []string{"code_execution"}, nil
		}
	}
	if local(p.api, kind) || p.allows(canonical(kind)) {
		return true, nil, nil
	}
	return false, []string{canonical(kind)}, nil
}

// runsLocally reports whether an environment of OpenAI's shell is the agent's own.
func runsLocally(environment []byte, stop func() error) bool {
	if environment == nil || string(environment) == "null" {
		return true
	}
	s := &scanner{data: environment, stop: stop}
	at, err := s.members("environment", maxToolMembers, nil)
	kind, ok := at.text("type")
	return err == nil && ok && slices.Contains([]string{"", "local"}, kind)
}
