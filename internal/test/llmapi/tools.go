package llmapi

import (
	"encoding/json"
	"slices"
	"strings"
)

// maker returns the call of a tool, if a suitable tool is offered.
type maker func(offered []string, arg string) (block, bool)

// variant is an agent's tool and its input.
type variant struct {
	name  string
	input map[string]any
}

// choose returns the call of the first variant that is offered.
func choose(offered []string, variants ...variant) (block, bool) {
	for _, v := range variants {
		if slices.Contains(offered, v.name) {
			return block{kind: blockTool, tool: v.name, input: v.input}, true
		}
	}
	return block{}, false
}

const fileContent = "hello from the scripted model\n"

func writeFile(offered []string, path string) (block, bool) {
	if path == "" {
		path = "hello.txt"
	}
	return choose(
		offered,
		variant{"Write", map[string]any{"file_path": path, "content": fileContent}},
		variant{"Edit", map[string]any{"file_path": path, "old_string": "", "new_string": fileContent}},
		variant{"apply_patch", map[string]any{"input": "*** Begin Patch\n*** Add File: " + path + "\n+" + fileContent + "*** End Patch\n"}},
		variant{"write", map[string]any{"filePath": path, "content": fileContent}},
		variant{"write_file", map[string]any{"file_path": path, "content": fileContent}},
	)
}

// callTool calls any tool, even if it is not offered: agents do not offer the tools that the
// model can search for.
func callTool(_ []string, call string) (block, bool) {
	name, input, _ := strings.Cut(call, " ")
	b := block{kind: blockTool, tool: name, input: map[string]any{}}
	return b, input == "" || json.Unmarshal([]byte(input), &b.input) == nil
}

// editFile replaces the line "old" of a file by "new".
func editFile(offered []string, path string) (block, bool) {
	if path == "" {
		path = "hello.txt"
	}
	return choose(
		offered,
		variant{"Edit", map[string]any{"file_path": path, "old_string": "old", "new_string": "new"}},
		variant{"edit", map[string]any{"filePath": path, "oldString": "old", "newString": "new"}},
		variant{"replace", map[string]any{"file_path": path, "old_string": "old", "new_string": "new", "instruction": "Replace it"}},
		variant{"apply_patch", map[string]any{"input": "*** Begin Patch\n*** Update File: " + path + "\n@@\n-old\n+new\n*** End Patch\n"}},
	)
}

// escalate runs a command outside the agent's own sandbox.
func escalate(offered []string, command string) (block, bool) {
	return choose(offered, variant{"exec_command", map[string]any{
		"cmd": command, "sandbox_permissions": "require_escalated", "justification": "May it run outside of the sandbox?",
	}})
}

func runCommand(offered []string, command string) (block, bool) {
	if command == "" {
		command = "echo hello"
	}
	return choose(
		offered,
		variant{"Bash", map[string]any{"command": command, "description": "Run a command"}},
		variant{"exec_command", map[string]any{"cmd": command}},
		variant{"bash", map[string]any{"command": command, "description": "Run a command"}},
		variant{"run_shell_command", map[string]any{"command": command, "description": "Run a command"}},
	)
}

// leaveBehind runs a command in the background.
func leaveBehind(offered []string, command string) (block, bool) {
	return choose(offered, variant{"Bash", map[string]any{"command": command, "run_in_background": true}})
}

// delegate starts a subagent, in the background or not. Its prompt names the scenario
// "subwork".
func delegate(background bool) maker {
	return func(offered []string, arg string) (block, bool) {
		if arg == "" {
			arg = "echo subagent"
		}
		input := map[string]any{
			"description":       "Do some work",
			"prompt":            "Please do the subwork `" + arg + "`",
			"subagent_type":     "general-purpose",
			"run_in_background": background,
		}
		return choose(offered, variant{codexSpawn, map[string]any{"message": input["prompt"]}}, variant{"Agent", input}, variant{"Task", input}, variant{"task", map[string]any{
			"description": input["description"], "prompt": input["prompt"], "subagent_type": "general",
		}})
	}
}

func askUser(offered []string, _ string) (block, bool) {
	return choose(offered, variant{"request_user_input", map[string]any{
		"questions": []any{map[string]any{
			"id":       "colour",
			"question": "Which colour?",
			"header":   "Colour",
			"options": []any{
				map[string]any{"label": "Red", "description": "The warm one"},
				map[string]any{"label": "Blue", "description": "The cold one"},
			},
		}},
	}}, variant{"AskUserQuestion", map[string]any{
		"questions": []any{map[string]any{
			"question":    "Which colour?",
			"header":      "Colour",
			"multiSelect": false,
			"options": []any{
				map[string]any{"label": "Red", "description": "The warm one"},
				map[string]any{"label": "Blue", "description": "The cold one"},
			},
		}},
	}}, variant{"question", map[string]any{
		"questions": []any{map[string]any{
			"question": "Which colour?",
			"header":   "Colour",
			"options": []any{
				map[string]any{"label": "Red", "description": "The warm one"},
				map[string]any{"label": "Blue", "description": "The cold one"},
			},
		}},
	}})
}

func plan(offered []string, _ string) (block, bool) {
	return choose(offered, variant{"update_plan", map[string]any{
		"plan": []any{
			map[string]any{"step": "Think", "status": "completed"},
			map[string]any{"step": "Act", "status": "in_progress"},
		},
	}}, variant{"TodoWrite", map[string]any{
		"todos": []any{
			map[string]any{"content": "Think", "status": "completed", "activeForm": "Thinking"},
			map[string]any{"content": "Act", "status": "in_progress", "activeForm": "Acting"},
		},
	}}, variant{"todowrite", map[string]any{
		"todos": []any{
			map[string]any{"content": "Think", "status": "completed", "priority": "high"},
			map[string]any{"content": "Act", "status": "in_progress", "priority": "low"},
		},
	}})
}
