package permission

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
)

// Call is a tool call as an agent describes it.
type Call struct {
	Name  string // the agent's own name of the tool; may be empty
	Kind  string // as in ACP, such as "execute" or "edit"; may be empty
	Input json.RawMessage
	Paths []string // files that the call concerns
}

// tools are the portable names of the agents' own tools.
var tools = map[string]string{
	"Bash": Bash, "Monitor": Bash, "bash": Bash, "shell": Bash, "local_shell": Bash, "exec_command": Bash, "unified_exec": Bash,
	"commandExecution": Bash, "run_shell_command": Bash,
	"Write": Write, "Edit": Write, "MultiEdit": Write, "NotebookEdit": Write, "write": Write, "edit": Write, "multiedit": Write,
	"patch": Write, "apply_patch": Write, "fileChange": Write, "write_file": Write, "replace": Write,
	"Read": Read, "NotebookRead": Read, "LS": Read, "Glob": Read, "Grep": Read, "read": Read, "list": Read, "glob": Read, "grep": Read,
	"read_file": Read, "read_many_files": Read, "list_directory": Read, "search_file_content": Read, "grep_search": Read,
	"view_image": Read, "imageView": Read,
	"BashOutput": "BashOutput", "KillShell": "KillShell",
	"WebFetch": Fetch, "webfetch": Fetch, "web_fetch": Fetch,
	"google_web_search": "WebSearch", "websearch": "WebSearch", "web_search": "WebSearch", "webSearch": "WebSearch",
}

// kinds are the portable names of the kinds of ACP.
var kinds = map[string]string{
	"execute": Bash, "edit": Write, "delete": Write, "move": Write, "read": Read, "fetch": Fetch,
}

// questions are tools that ask the user for words.
var questions = map[string]bool{
	"AskUserQuestion": true, "ExitPlanMode": true, "question": true, "request_user_input": true, "requestUserInput": true, "ask_user": true,
	"budget": true, // the request of an environment whose budget is used up
}

// Tool returns the portable name of the tool that is called: Bash, Write, Read, Fetch,
// mcp__SERVER__TOOL, or the agent's own name.
func (p *Policy) Tool(call Call) string {
	name := call.Name
	if tool, ok := tools[name]; ok {
		return tool
	}
	switch {
	case strings.HasPrefix(name, "mcp__"):
		return name
	case strings.Count(name, "/") == 1 && !strings.HasPrefix(name, "/"): // Codex
		server, tool, _ := strings.Cut(name, "/")
		return "mcp__" + server + "__" + tool
	}
	if of := p.serverTool(name); of != "" {
		return of
	}
	if tool, ok := kinds[call.Kind]; ok {
		return tool
	}
	if name == "" {
		return "other"
	}
	return portableName(ruleName(name))
}

// ownName returns the name in rules of a tool that has its portable name by the kind of the call; empty for other tools.
// Rules may be about both.
func (p *Policy) ownName(call Call) string {
	if own := p.Tool(Call{Name: call.Name}); call.Name != "" && own != p.Tool(call) {
		return own
	}
	return ""
}

// serverTool returns the portable name of a tool of an MCP server that an agent names together with
// the server; empty if it is none.
func (p *Policy) serverTool(name string) string {
	of, longest := "", ""
	for _, server := range p.place.Servers {
		for _, prefix := range []string{"mcp_" + server + "_", server + "__", server + "_"} { // Gemini CLI, OpenCode
			if tool, ok := strings.CutPrefix(name, prefix); ok && tool != "" && len(server) > len(longest) {
				of, longest = "mcp__"+server+"__"+tool, server
			}
		}
	}
	return of
}

// input has the fields of the inputs of the agents' tools.
type input struct {
	Command      json.RawMessage `json:"command"` // a script, or a list of arguments
	Cmd          json.RawMessage `json:"cmd"`
	Cwd          string          `json:"cwd"`
	Workdir      string          `json:"workdir"`
	Directory    string          `json:"directory"`
	DirPath      string          `json:"dir_path"`
	WorkingDir   string          `json:"working_directory"`
	Shell        string          `json:"shell"` // which runs the command; empty for the agent's own
	Env          json.RawMessage `json:"env"`
	FilePath     string          `json:"file_path"`
	FilePathJS   string          `json:"filePath"`
	NotebookPath string          `json:"notebook_path"`
	AbsolutePath string          `json:"absolute_path"`
	Path         string          `json:"path"`
	// Those of tools that search.
	Pattern json.RawMessage `json:"pattern"`
	Glob    json.RawMessage `json:"glob"`
	Include json.RawMessage `json:"include"`
	Paths   json.RawMessage `json:"paths"`
	Changes []struct {
		Path string `json:"path"`
		Kind struct {
			Move string `json:"move_path"`
		} `json:"kind"`
	} `json:"changes"`
	URL string `json:"url"`
}

// actions returns what a call does; there is at least one.
func (p *Policy) actions(call Call) []action {
	tool := p.Tool(call)
	if questions[call.Name] || slices.Contains(p.place.Servers, call.Name) { // a server asks for words by its name
		return []action{{tool: tool, question: true}}
	}
	var in input
	malformed := len(call.Input) > 0 && (json.Unmarshal(call.Input, &in) != nil || ambiguous(call.Input))
	one := func(why string) []action { return []action{{tool: tool, unclear: why}} }
	switch {
	case tool != Bash && tool != Write && tool != Read && tool != Fetch:
		return []action{{tool: tool}}
	case malformed:
		return one("its input cannot be read")
	case tool == Bash:
		return append(p.commands(in), p.beside(call, in)...)
	case tool == Fetch:
		host, ok := hostOf(in.URL)
		if !ok {
			return one("the host of its URL cannot be told")
		}
		return []action{{tool: tool, host: host}}
	}
	return p.files(tool, call, in)
}

// Subject describes what a call does, in one line: its command, its files, its host, or else its input.
func (p *Policy) Subject(call Call) string {
	var in input
	_ = json.Unmarshal(call.Input, &in) // then it is described by its input
	tool := p.Tool(call)
	var all []string
	for _, a := range p.actions(call) {
		if name := a.path + a.host; name != "" && !slices.Contains(all, name) { // an agent may name a file in several ways
			all = append(all, name)
		}
	}
	var command string
	raw := append(in.Command, in.Cmd...)
	switch {
	case tool == Bash && json.Unmarshal(raw, &command) == nil:
		if _, shell := tools[call.Name]; !shell {
			command = strings.Join(append([]string{command}, in.files()...), " ")
		}
		return command
	case tool == Bash && len(raw) > 0:
		return string(raw)
	case len(all) > 0 && tool != Bash:
		return strings.Join(all, " ")
	}
	return string(call.Input)
}

// Key identifies the calls that are the same to a user who answers for all of them: those of one
// command, file, host or tool of a server, or with one input. It is short, and empty for a call that
// does not say what it does.
func (p *Policy) Key(call Call) string {
	tool := p.Tool(call)
	parts := []string{tool}
	var in input
	_ = json.Unmarshal(call.Input, &in) // then the call is unclear
	judged := true
	for _, a := range p.actions(call) {
		parts = append(parts, a.path, a.host, a.glob)
		judged = judged && a.unclear == ""
	}
	switch {
	case tool == Bash && len(in.Command)+len(in.Cmd) > 0:
		parts = []string{tool, commandKey(call.Input)}
		if own := p.ownName(call); own != "" {
			parts = append(parts, own)
		}
	case !judged, tool != Write && tool != Read && tool != Fetch && !strings.HasPrefix(tool, "mcp__"):
		if len(call.Input)+len(call.Paths) == 0 {
			return ""
		}
		parts = append(append(parts, string(call.Input)), call.Paths...)
	}
	text, err := json.Marshal(parts)
	if err != nil {
		panic(fmt.Sprintf("texts are no JSON: %v", err)) // cannot happen
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

// commandKey returns the input of a call of a shell without the fields that change nothing.
func commandKey(raw json.RawMessage) string {
	var fields map[string]any
	if json.Unmarshal(raw, &fields) != nil || repeats(raw) {
		return string(raw)
	}
	for _, name := range []string{"description", "timeout", "timeout_ms", "yield_time_ms", "max_output_tokens"} {
		delete(fields, name)
	}
	key, err := json.Marshal(fields) // in the order of the names
	if err != nil {
		return string(raw)
	}
	return string(key)
}

// ambiguous reports whether the agent and this package could read different values: encoding/json
// takes "Command" for command, and the last of two fields of one name.
func ambiguous(raw json.RawMessage) bool {
	var keys map[string]json.RawMessage
	if json.Unmarshal(raw, &keys) != nil || repeats(raw) {
		return true
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[input]()) {
		name := field.Tag.Get("json")
		for key := range keys {
			if key != name && strings.EqualFold(key, name) {
				return true
			}
		}
	}
	return keys["command"] != nil && keys["cmd"] != nil
}

// repeats reports whether an object has a field twice. Some programs take the first one.
func repeats(raw json.RawMessage) bool {
	dec := json.NewDecoder(bytes.NewReader(raw))
	_, _ = dec.Token() // the bracket
	seen := map[string]bool{}
	for dec.More() {
		var value json.RawMessage
		name, err := dec.Token()
		key, ok := name.(string)
		if err != nil || !ok || seen[key] || dec.Decode(&value) != nil {
			return true
		}
		seen[key] = true
	}
	return false
}

// commands returns what a call of a shell does.
func (p *Policy) commands(in input) []action {
	dir, around := p.surroundings(in)
	raw := in.Command
	if len(raw) == 0 {
		raw = in.Cmd
	}
	var script string
	var args []string
	switch {
	case json.Unmarshal(raw, &script) == nil && script != "":
		return append(p.script(script, dir), around...)
	case json.Unmarshal(raw, &args) == nil && len(args) > 0:
		return append(p.arguments(args, dir), around...)
	}
	return []action{{tool: Bash, unclear: "the command is missing"}}
}

// surroundings returns the folder in which a command runs, and what that and its other surroundings mean.
func (p *Policy) surroundings(in input) (dir string, around []action) {
	for _, d := range []string{in.Cwd, in.Workdir, in.Directory, in.DirPath, in.WorkingDir} {
		if dir != "" && d != "" && d != dir { // an agent knows one of the fields
			around = append(around, action{tool: Bash, unclear: "it names two folders"})
		}
		dir = cmp.Or(dir, d)
	}
	var env map[string]json.RawMessage
	bad := len(in.Env) > 0 && json.Unmarshal(in.Env, &env) != nil
	for name := range env {
		bad = bad || !harmlessVariable(name, true)
	}
	if bad {
		around = append(around, action{tool: Bash, unclear: "it sets a variable that can change what commands do"})
	}
	if in.Shell != "" && (!shells[path.Base(in.Shell)] || !standard(in.Shell)) {
		around = append(around, action{tool: Bash, unclear: "it runs in a shell of its own"})
	}
	return dir, append(around, p.workIn(dir)...)
}

// workIn returns what it means to run a command in a folder, which is a cd to it: outside of the workspace, it may find
// another configuration.
func (p *Policy) workIn(dir string) []action {
	if dir == "" {
		return nil
	}
	if clean, ok := p.place.clean("", dir); !ok || path.IsAbs(clean) || ofGit(clean) {
		return []action{{tool: Bash, unclear: "it runs in another folder than the workspace"}}
	}
	return []action{{tool: Bash, words: []word{{text: "cd", known: true}, {text: dir, known: true}}, innocent: true}}
}

// beside returns what a tool that is a shell only by its kind does to the files in its input. An editor has its action in
// the field command: create, or view, which only reads.
func (p *Policy) beside(call Call, in input) []action {
	if _, shell := tools[call.Name]; shell || len(in.files()) == 0 {
		return nil
	}
	all := p.files(Read, Call{}, in)
	if string(in.Command) != `"view"` {
		all = append(all, p.files(Write, Call{}, in)...)
	}
	for i := range all {
		all[i].innocent = true // the command must be allowed
	}
	return all
}

// files returns the files that an input names.
func (in input) files() []string {
	var paths []string
	for _, c := range in.Changes {
		paths = append(paths, c.Path)
		if c.Kind.Move != "" {
			paths = append(paths, c.Kind.Move)
		}
	}
	for _, f := range []string{in.FilePath, in.FilePathJS, in.NotebookPath, in.AbsolutePath, in.Path} {
		if f != "" {
			paths = append(paths, f)
		}
	}
	return paths
}

// files returns what a call of a file tool does.
func (p *Policy) files(tool string, call Call, in input) []action {
	paths := append(slices.Clone(call.Paths), in.files()...)
	if s, searches := searchers[call.Name]; searches {
		return p.search(append(paths, in.DirPath), in, s)
	}
	patch := call.Name == "apply_patch" || call.Name == "patch" // whose text names the files
	if len(paths) == 0 || patch && len(call.Paths)+len(in.Changes) == 0 {
		return []action{{tool: tool, unclear: "it does not say which file"}}
	}
	var all []action
	for _, f := range paths {
		clean, ok := p.place.clean("", f)
		if !ok || in.Cwd != "" && !path.IsAbs(f) { // an agent may not know the field
			all = append(all, action{tool: tool, unclear: "the path cannot be judged"})
			continue
		}
		all = append(all, action{tool: tool, path: clean})
	}
	return all
}
