// Package gemini drives the Gemini CLI through the Agent Client Protocol (ACP). Facts about the
// program that shape the code:
//
//   - It stores a session in a file named by the minute in which the session began. Loading the
//     session in that minute overwrites the file. Loading it later creates a second file with the
//     same short ID, and the next start deletes the first. So the driver names the file by a
//     minute in the past, removes the other files, and turns deletion off.
//   - It reports a session as loaded before it has repeated all its messages.
//   - It forgets an interrupted or failed prompt together with the answer. If a tool call was open, it
//     remembers the call without a result, which its model's API refuses from then on. So the driver
//     starts it again.
//   - It records each result of a tool call twice, and makes a second response of it when it loads
//     the session, which the API refuses, too. So the driver writes the file anew before each start.
//   - It does not report the input of a tool call, the cached tokens of a query, or the rejection
//     of a tool call. The session's file has most of that.
//   - In an untrusted folder it refuses the modes that allow more than the default mode, so the
//     driver implements those.
//   - The workspace's settings, hooks, MCP servers, agents and .env file take effect only in a
//     trusted folder. So do the user's own hooks and MCP servers: the driver puts the hooks into
//     an extension, and for the MCP servers trusts a workspace that contains no settings of its
//     own.
//   - When it is driven through ACP, it runs no hooks around tool calls or at the start, and has
//     no custom commands.
package gemini
