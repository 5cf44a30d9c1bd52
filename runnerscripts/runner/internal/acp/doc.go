// Package acp drives agents that speak the Agent Client Protocol on their
// standard input and output. [Driver] is the driver of any such agent, whose
// program the session names; a driver of one particular agent calls [Start] and
// says with a [Config] where that agent differs.
//
// The events of this project have the names and the payloads of ACP, so they are
// passed on mostly as they come. What is added: ids of blocks, which ACP has not;
// the end of tool calls that the agent does not end itself; and what each query
// cost. An update of an unknown kind becomes an event of that name.
//
// The agent gets the MCP servers of the profile when a session is made or loaded. ACP
// has no way for the rest of a profile, nor to report that a server does not start: only
// a missing program is reported.
//
// The agent is offered neither a file system nor a terminal: it runs in the
// sandbox, where it has its own.
package acp
