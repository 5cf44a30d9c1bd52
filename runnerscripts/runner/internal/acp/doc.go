// Package acp drives agents that speak the Agent Client Protocol on their standard input and
// output. [Driver] is the driver of any such agent, whose program the session names. The driver of
// a particular agent calls [Start] with a [Config] that describes how that agent differs.
//
// The events of this project have the names and payloads of ACP, so most are passed on
// unchanged. The driver adds the IDs of blocks, which ACP lacks; the end of tool calls that the
// agent leaves open; and the cost of each query. An update of an unknown kind becomes an event
// of that name.
//
// The agent receives the profile's MCP servers when a session is created or loaded. ACP cannot
// carry the rest of a profile, nor report a server that does not start: the driver reports only
// a missing program.
//
// The driver offers the agent neither a file system nor a terminal: the agent uses those of the
// sandbox.
package acp
