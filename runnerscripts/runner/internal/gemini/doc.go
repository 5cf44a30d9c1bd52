// Package gemini drives the Gemini CLI through the Agent Client Protocol. Facts
// about it that shape the code:
//
//   - It keeps a session in a file of its own, by the minute in which it began.
//     A session that is loaded in that minute is overwritten; loaded later, it
//     leaves a second file with the same short id, for whose sake the next start
//     deletes the first. So the file gets a name of a minute that never comes, the
//     others are removed, and deletion is off.
//   - It goes on repeating a loaded session after it has said that it is loaded.
//   - An interrupted or failed prompt is forgotten, with all that was answered.
//   - It tells neither the input of a tool, nor what a query cost without the
//     cache, nor that a tool was rejected; its file does, mostly.
//   - In a folder that is not trusted it has no modes that allow more than the
//     default one, so the driver keeps those itself.
//   - The workspace's settings, hooks, MCP servers, agents and .env file take
//     effect in a trusted folder only. So do the user's own hooks and MCP servers:
//     the driver puts the former into an extension, and trusts a workspace that
//     brings nothing of its own for the sake of the latter.
//   - Driven, it runs no hooks around tools and none at the start, and knows no
//     commands of the user's own.
package gemini
