// Package gemini drives the Gemini CLI through the Agent Client Protocol. Facts
// that shape the code:
//
//   - It stores a session in its own file, named by the minute in which the session
//     began. Loading a session in that minute overwrites the file; loading it later
//     creates a second file with the same short ID, and the next start
//     deletes the first. So the driver names the file by a minute that never comes,
//     removes the others, and turns deletion off.
//   - It still repeats a loaded session after it has reported it as loaded.
//   - It forgets an interrupted or failed prompt with all of its answer.
//   - It does not report the input of a tool, the cost of a query without the
//     cache, or the rejection of a tool. Its file has most of that.
//   - In an untrusted folder it refuses the modes that allow more than the default
//     one, so the driver implements those.
//   - The workspace's settings, hooks, MCP servers, agents and .env file take
//     effect only in a trusted folder. So do the user's own hooks and MCP servers:
//     the driver puts the hooks into an extension, and for the MCP servers trusts a
//     workspace that contains no settings of its own.
//   - When it is driven, it runs no hooks around tools or at the start, and has no
//     custom commands.
package gemini
