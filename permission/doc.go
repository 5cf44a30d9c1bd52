// Package permission decides by rules whether an agent may call a tool. It is pure: it reads no
// file, starts nothing and keeps no state. The same rules give the same decisions for all agents,
// because tools are known by portable names:
//
//	Bash(git *)         a command of the shell
//	Write(src/**)       changing, creating, moving and removing files; Edit is the same
//	Read(docs/**)       reading files
//	Fetch(example.com)  fetching a URL; *.example.com is every host below
//	mcp__SERVER__TOOL   a tool of an MCP server
//	WebSearch           any other tool, by the agent's own name
//
// A name without parentheses stands for every call of the tool, and * in a name for any text.
//
// A deny rule wins over an ask rule, that over an allow rule, and that over the [Mode].
//
// # Commands
//
// A command of the shell is parsed, as Bash does it, and each simple command in it is judged:
// those of pipes, lists, loops, substitutions and here documents, of eval and "sh -c", and those
// that env, timeout, xargs and the like start. All must be allowed. A redirection that writes a
// file is a call of Write. What cannot be judged, such as a command name that a variable holds, is
// asked, unless no rule denies or asks anything and all commands are allowed.
//
// In Bash(...) each word matches one word, in which * stands for any text; the word * stands for
// any number of words. A command that only resembles a denied one is asked: "git -C . push" with the rule
// Bash(git push *), for example, or a text with those words.
//
// The rules are no boundary: a program that may run can do what the rules do not see. The sandbox
// is the boundary.
package permission
