package guest

import (
	"github.com/agentenv-dev/agentenv/primitives"
)

// The field lists of everything that goes over the wire. A test fills every
// struct by reflection, so a field that is forgotten here fails the build.

func codeStrings(c *codec, v *[]string) { codeSlice(c, v, codeString[string]) }

func codePaths(c *codec, v *primitives.Paths) {
	codeString(c, &v.Session)
	codeString(c, &v.App)
	codeString(c, &v.Workspace)
	codeString(c, &v.Home)
	codeString(c, &v.MCP)
}

func codeCapabilities(c *codec, v *primitives.Capabilities) {
	codeString(c, &v.OS)
	codeString(c, &v.Arch)
	c.bool(&v.Durable)
	c.bool(&v.Users)
	c.bool(&v.Snapshot)
	c.bool(&v.Fork)
	c.bool(&v.Pause)
	c.bool(&v.Usage)
	codeString(c, &v.TreeKill)
	codeString(c, &v.Isolation) // the client replaces it: a guest cannot know
	codeString(c, &v.Note)
}

func codeTerminalSize(c *codec, v *primitives.TerminalSize) {
	codeUint(c, &v.Rows)
	codeUint(c, &v.Cols)
}

func codeCommand(c *codec, v *primitives.Command) {
	codeStrings(c, &v.Args)
	codeString(c, &v.Dir)
	codeStrings(c, &v.Env)
	codeString(c, &v.User)
	c.bool(&v.Stdin)
	c.bool(&v.MergeStderr)
	codeOptional(c, &v.TTY, codeTerminalSize)
	codeInt(c, &v.Timeout)
	codeInt(c, &v.Grace)
	c.bool(&v.Durable)
}

func codeExitStatus(c *codec, v *primitives.ExitStatus) {
	codeInt(c, &v.Code)
	codeString(c, &v.Signal)
	codeString(c, &v.Reason)
}

func codeOffset(c *codec, v *primitives.Offset) {
	c.int64(&v.Stdout)
	c.int64(&v.Stderr)
	c.bool(&v.NoFollow)
}

func codeWriteOptions(c *codec, v *primitives.WriteOptions) {
	codeUint(c, &v.Mode)
	c.bool(&v.Append)
	c.bool(&v.Exclusive)
	codeString(c, &v.IfRevision)
}

func codeFileInfo(c *codec, v *primitives.FileInfo) {
	codeString(c, &v.Path)
	c.int64(&v.Size)
	codeUint(c, &v.Mode)
	c.time(&v.ModTime)
	codeString(c, &v.Target)
	codeString(c, &v.Revision)
	codeInt(c, &v.UID)
	codeInt(c, &v.GID)
}

func codeListOptions(c *codec, v *primitives.ListOptions) {
	codeInt(c, &v.Depth)
	codeString(c, &v.Pattern)
	codeInt(c, &v.Limit)
}

func codePackOptions(c *codec, v *primitives.PackOptions) {
	codeStrings(c, &v.Ignore)
}

func codeWatchOptions(c *codec, v *primitives.WatchOptions) {
	c.bool(&v.Shallow)
	codeStrings(c, &v.Include)
	codeStrings(c, &v.Ignore)
	c.int64(&v.MaxContent)
	codeInt(c, &v.Debounce)
}

func codeWatchEvent(c *codec, v *primitives.WatchEvent) {
	codeString(c, &v.Op)
	codeString(c, &v.Path)
	codeString(c, &v.From)
	c.bool(&v.Dir)
	c.int64(&v.Size)
	c.time(&v.Time)
	c.bytes(&v.Content)
	codeString(c, &v.Omitted)
}

func codeState(c *codec, v *primitives.State) {
	codeString(c, &v.Status)
	codeExitStatus(c, &v.Exit)
}

func codeKilledProcess(c *codec, v *primitives.KilledProcess) {
	codeInt(c, &v.PID)
	codeString(c, &v.Command)
	c.bool(&v.Forced)
}

func codeTerminateReport(c *codec, v *primitives.TerminateReport) {
	codeSlice(c, &v.Killed, codeKilledProcess)
	codeSlice(c, &v.Survivors, codeKilledProcess)
}
