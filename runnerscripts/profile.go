package runnerscripts

// Profile makes a general agent a particular one: its instructions, its tools and its permissions.
// The zero value changes nothing. A field that the chosen agent does not support is refused with
// [FailUnsupported], never ignored. The [Recipe] of an agent lists what it supports. Profile is
// part of environment.Config and of the protocol.
//
// Names of rules, skills, commands, subagents, servers and plugins become file names. They consist
// of letters, digits, "-", "_" and ".", and must be unique.
type Profile struct {
	// ID, Name and Description are for people and programs that keep profiles. Agents do not see
	// them.
	ID          string `json:"id,omitempty"`
	Name        string `json:"name,omitempty"`
	Description string `json:"description,omitempty"`

	// Model, PermissionMode and MaxTurns mean the same as in [Agent], whose values take precedence.
	// SystemPrompt precedes the one of Agent.
	Model          string `json:"model,omitempty"`
	PermissionMode string `json:"permission_mode,omitempty"`
	MaxTurns       int    `json:"max_turns,omitempty"`
	SystemPrompt   string `json:"system_prompt,omitempty"`
	// BudgetUSD ends a query when its cost, as the agent calculates it, reaches this many US
	// dollars. The cost of background commands counts. Zero means no limit.
	BudgetUSD float64 `json:"budget_usd,omitempty"`
	// AllowedTools run without asking; DeniedTools are not available. Both use the agent's own
	// syntax, such as "Bash(git log *)".
	AllowedTools []string `json:"allowed_tools,omitempty"`
	DeniedTools  []string `json:"denied_tools,omitempty"`
	// Permissions are rules for the host, as those of a configuration. If that has some too, the
	// stricter decision counts. The agent does not see them.
	Permissions ProfilePermissions `json:"permissions,omitzero"`

	Rules      []Rule         `json:"rules,omitempty"`
	Skills     []Skill        `json:"skills,omitempty"`
	Commands   []SlashCommand `json:"commands,omitempty"`
	Subagents  []Subagent     `json:"subagents,omitempty"`
	Hooks      []Hook         `json:"hooks,omitempty"`
	MCPServers []MCPServer    `json:"mcp_servers,omitempty"`
	Plugins    []Plugin       `json:"plugins,omitempty"`
	// Files are written into the workspace unless it already has them.
	Files []WorkspaceFile `json:"files,omitempty"`
}

// ProfilePermissions are the fields of permission.Rules.
type ProfilePermissions struct {
	Mode  string   `json:"mode,omitempty"`
	Allow []string `json:"allow,omitempty"`
	Ask   []string `json:"ask,omitempty"`
	Deny  []string `json:"deny,omitempty"`
}

// IsZero reports whether nothing is set.
func (p ProfilePermissions) IsZero() bool {
	return p.Mode == "" && len(p.Allow)+len(p.Ask)+len(p.Deny) == 0
}

// Rule is an instruction that the agent always sees, like the text of a CLAUDE.md or AGENTS.md.
type Rule struct {
	Name    string `json:"name"`
	Content string `json:"content"` // Markdown
}

// Skill is a folder of instructions, and files for them, that the agent reads when it needs them.
// It follows the Agent Skills format (https://agentskills.io).
type Skill struct {
	Name string `json:"name"`
	// Description tells the agent when to use the skill.
	Description string `json:"description"`
	Content     string `json:"content"` // Markdown; the body of SKILL.md
	// Frontmatter holds further keys of SKILL.md, such as "allowed-tools".
	Frontmatter map[string]any `json:"frontmatter,omitempty"`
	// Files are written beside SKILL.md. Their paths are relative to its folder.
	Files []WorkspaceFile `json:"files,omitempty"`
}

// SlashCommand is a prompt with a name. The query "/name arguments" sends it.
type SlashCommand struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	// Content is the prompt. $ARGUMENTS in it stands for the text after the name.
	Content     string         `json:"content"`
	Frontmatter map[string]any `json:"frontmatter,omitempty"`
}

// Subagent is an agent to which the main agent can delegate work.
type Subagent struct {
	Name string `json:"name"`
	// Description tells the agent when to use the subagent.
	Description string `json:"description"`
	Prompt      string `json:"prompt"` // its system prompt
	// Tools lists the tools that the subagent may use, in the agent's own syntax. Empty means all.
	Tools []string `json:"tools,omitempty"`
	// Model is the subagent's model. Empty means the model of the agent.
	Model       string         `json:"model,omitempty"`
	Frontmatter map[string]any `json:"frontmatter,omitempty"`
}

// Hook is a command that the agent runs when something happens. It gets a JSON object on standard
// input, and its exit status and output can change what the agent does. The agent defines the
// details.
type Hook struct {
	// Event is the event's name in Claude Code: "PreToolUse", "PostToolUse", "SessionStart",
	// "UserPromptSubmit", "Stop", ...
	Event string `json:"event"`
	// Matcher selects the tools that the hook is for, in the agent's own syntax. Empty means all.
	Matcher string `json:"matcher,omitempty"`
	Command string `json:"command"` // a shell command
	// TimeoutSeconds limits the hook's run time. Zero leaves the limit to the agent.
	TimeoutSeconds int `json:"timeout_seconds,omitempty"`
}

// MCPServer is a server of the Model Context Protocol whose tools the agent gets: either a Command
// that speaks the protocol over standard input and output, or the URL of a server that speaks
// streamable HTTP.
//
// Agents read the values of Env and Headers from files in the sandbox. Write ${NAME} for a secret:
// it stands for a variable of the agent's environment (Agent.Env), whose value is in no file.
type MCPServer struct {
	Name    string            `json:"name"`
	Command []string          `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"` // environment of Command
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"` // headers of requests to URL
	// Files hold the server's own program. They are written into a separate folder of the sandbox.
	// Install, a shell command, runs in that folder once; Command runs in it every time.
	Files   []WorkspaceFile `json:"files,omitempty"`
	Install string          `json:"install,omitempty"`
}

// Plugin is a bundle of the above in the agent's own format. Either Files hold it, or the agent
// installs it from Marketplace.
type Plugin struct {
	Name string `json:"name"`
	// Marketplace is the source in the agent's own syntax: "owner/repository", a URL, or a folder
	// of the sandbox.
	Marketplace string          `json:"marketplace,omitempty"`
	Files       []WorkspaceFile `json:"files,omitempty"`
}

// Feature is an ability that not every agent has.
type Feature string

// The features of an agent. A feature that belongs to a profile has the name of the field in
// [Profile] or [Agent].
const (
	FeatureModel          Feature = "model"
	FeaturePermissionMode Feature = "permission_mode"
	FeatureMaxTurns       Feature = "max_turns"
	FeatureSystemPrompt   Feature = "system_prompt"
	FeatureBudget         Feature = "budget_usd"
	FeatureAllowedTools   Feature = "allowed_tools"
	FeatureDeniedTools    Feature = "denied_tools"
	FeatureRules          Feature = "rules"
	FeatureSkills         Feature = "skills"
	FeatureCommands       Feature = "commands"
	FeatureSubagents      Feature = "subagents"
	FeatureHooks          Feature = "hooks"
	FeatureMCPStdio       Feature = "mcp_stdio" // mcp_servers with a command
	FeatureMCPHTTP        Feature = "mcp_http"  // mcp_servers with a url
	FeaturePlugins        Feature = "plugins"

	FeaturePermissions Feature = "permissions"  // asks before it acts
	FeatureAllowAlways Feature = "allow_always" // a permission can be granted for the whole session
	FeatureInterrupt   Feature = "interrupt"
	FeatureSetMode     Feature = "set_mode"  // between prompts
	FeatureSetModel    Feature = "set_model" // between prompts
	FeatureResume      Feature = "resume"    // remembers across processes and sandboxes
	FeatureThinking    Feature = "thinking"  // shows its thoughts
	FeatureUsage       Feature = "usage"     // tokens of each query
	FeatureCost        Feature = "cost"      // money of each query

	FeatureImages    Feature = "images"     // as attachments of a prompt, like the next two
	FeaturePDF       Feature = "pdf"        // documents
	FeatureTextFiles Feature = "text_files" // of any type, in UTF-8
)
