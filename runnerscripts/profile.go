package runnerscripts

// Profile makes a general agent a particular one: its instructions, its tools and
// its permissions. The zero value changes nothing. A field that the chosen
// agent has nothing for is refused with [FailUnsupported], never ignored; what
// each agent takes is in its [Recipe]. It is both configuration (of
// environment.Config) and protocol.
//
// Names of rules, skills, commands, subagents, servers and plugins become names of
// files: letters, digits, "-", "_" and ".", none twice.
type Profile struct {
	// ID, Name and Description are for people and programs that keep profiles;
	// agents are not told.
	ID          string `json:"id,omitempty"`
	Name        string `json:"name,omitempty"`
	Description string `json:"description,omitempty"`

	// Model, PermissionMode and MaxTurns are what [Agent] means by them, which
	// comes first where it has them. The SystemPrompt stands before that of
	// Agent.
	Model          string `json:"model,omitempty"`
	PermissionMode string `json:"permission_mode,omitempty"`
	MaxTurns       int    `json:"max_turns,omitempty"`
	SystemPrompt   string `json:"system_prompt,omitempty"`
	// BudgetUSD ends a query that has cost so much, in US dollars, by the agent's own
	// reckoning. The cost of commands in its background counts. Zero means no limit.
	BudgetUSD float64 `json:"budget_usd,omitempty"`
	// AllowedTools run without asking; DeniedTools are not available. They are
	// in the agent's own words, such as "Bash(git log *)".
	AllowedTools []string `json:"allowed_tools,omitempty"`
	DeniedTools  []string `json:"denied_tools,omitempty"`

	Rules      []Rule         `json:"rules,omitempty"`
	Skills     []Skill        `json:"skills,omitempty"`
	Commands   []SlashCommand `json:"commands,omitempty"`
	Subagents  []Subagent     `json:"subagents,omitempty"`
	Hooks      []Hook         `json:"hooks,omitempty"`
	MCPServers []MCPServer    `json:"mcp_servers,omitempty"`
	Plugins    []Plugin       `json:"plugins,omitempty"`
	// Files are written into the workspace where it does not have them yet.
	Files []WorkspaceFile `json:"files,omitempty"`
}

// Rule is an instruction that the agent always has before its eyes, as of a
// CLAUDE.md or AGENTS.md.
type Rule struct {
	Name    string `json:"name"`
	Content string `json:"content"` // Markdown
}

// Skill is a folder of instructions, and files for them, that the agent reads when
// it needs them, as the Agent Skills format has them (https://agentskills.io).
type Skill struct {
	Name string `json:"name"`
	// Description tells the agent when to use it.
	Description string `json:"description"`
	Content     string `json:"content"` // Markdown; the body of SKILL.md
	// Frontmatter are further keys of SKILL.md, such as "allowed-tools".
	Frontmatter map[string]any `json:"frontmatter,omitempty"`
	// Files are beside SKILL.md, by paths relative to its folder.
	Files []WorkspaceFile `json:"files,omitempty"`
}

// SlashCommand is a prompt that has a name: a query "/name arguments" sends it.
type SlashCommand struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	// Content is the prompt; $ARGUMENTS in it stands for what follows the name.
	Content     string         `json:"content"`
	Frontmatter map[string]any `json:"frontmatter,omitempty"`
}

// Subagent is an agent that the agent can give work to.
type Subagent struct {
	Name string `json:"name"`
	// Description tells the agent when to use it.
	Description string `json:"description"`
	Prompt      string `json:"prompt"` // its system prompt
	// Tools are what it may use, in the agent's own words; empty means all.
	Tools []string `json:"tools,omitempty"`
	// Model is the agent's own if it is empty.
	Model       string         `json:"model,omitempty"`
	Frontmatter map[string]any `json:"frontmatter,omitempty"`
}

// Hook is a command that the agent runs when something happens. It gets a JSON
// object on standard input; its exit status and output can change what the agent
// does, all as the agent has it.
type Hook struct {
	// Event is by its name in Claude Code: "PreToolUse", "PostToolUse",
	// "SessionStart", "UserPromptSubmit", "Stop", ...
	Event string `json:"event"`
	// Matcher is which tools it is for, in the agent's own words; empty means
	// all of them.
	Matcher string `json:"matcher,omitempty"`
	Command string `json:"command"` // of a shell
	// TimeoutSeconds is how long it may take; zero leaves it to the agent.
	TimeoutSeconds int `json:"timeout_seconds,omitempty"`
}

// MCPServer is a server of the Model Context Protocol whose tools the agent gets:
// a Command that speaks it over standard input and output, or the URL of one that
// speaks streamable HTTP.
//
// Agents read the values of Env and Headers from files in the sandbox. For
// secrets, ${NAME} in them stands for a variable of the agent's environment
// (Agent.Env), whose value no file has.
type MCPServer struct {
	Name    string            `json:"name"`
	Command []string          `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"` // of Command
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"` // of requests to URL
	// Files bring the server's own program: they are written into a folder of
	// their own in the sandbox, in which Install, a command of a shell, is run
	// once, and Command every time.
	Files   []WorkspaceFile `json:"files,omitempty"`
	Install string          `json:"install,omitempty"`
}

// Plugin is a bundle of the above in the agent's own format: one that is brought
// along as Files, or one of a Marketplace, from which it is installed.
type Plugin struct {
	Name string `json:"name"`
	// Marketplace is the source as the agent takes it: "owner/repository", a
	// URL, or a folder of the sandbox.
	Marketplace string          `json:"marketplace,omitempty"`
	Files       []WorkspaceFile `json:"files,omitempty"`
}

// Feature is something that not every agent has.
type Feature string

// The features of an agent. Those of profiles have the name of the field in
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
	FeatureResume      Feature = "resume"    // remembers in a new process and another sandbox
	FeatureThinking    Feature = "thinking"  // shows its thoughts
	FeatureUsage       Feature = "usage"     // tokens of each query
	FeatureCost        Feature = "cost"      // money of each query
)
