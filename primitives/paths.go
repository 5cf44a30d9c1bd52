package primitives

import "path"

// Paths are the folders of one sandbox, as absolute slash paths inside it. All of them derive
// from one session folder, see [PathsIn], except that the workspace may be elsewhere: its path can
// stay the same in the next sandbox of a conversation.
type Paths struct {
	Session   string `json:"session"`   // contains the folders below and nothing else that matters
	App       string `json:"app"`       // agentenv's own: the runner and its state
	Workspace string `json:"workspace"` // the agent's working directory; relative paths start here
	Home      string `json:"home"`      // the agent's HOME: its settings and transcripts
	MCP       string `json:"mcp"`       // bundled MCP servers
}

// PathsIn returns the layout of a sandbox whose session folder is dir. It is the
// only definition of that layout.
func PathsIn(dir string) Paths {
	return Paths{
		Session:   dir,
		App:       path.Join(dir, "app"),
		Workspace: path.Join(dir, "workspace"),
		Home:      path.Join(dir, "home"),
		MCP:       path.Join(dir, "mcp"),
	}
}

// All returns the folders, parents before children.
func (p Paths) All() []string {
	return []string{p.Session, p.App, p.Workspace, p.Home, p.MCP}
}
