package gemini

import (
	"encoding/json"
	"strconv"
	"strings"
)

// commandEnd is the end of a command, as the program reports it to the model.
type commandEnd struct {
	output string
	exit   int // its exit status; zero also if unknown
}

// endOfCommand parses the result of the tool that runs commands:
//
//	<untrusted_context>
//	Output: ...
//	Exit Code: 3
//	Process Group PGID: 42
//	</untrusted_context>
//
// ok is false for a command that was cancelled or moved to the background.
func endOfCommand(result json.RawMessage) (end commandEnd, ok bool) {
	var parts []struct {
		FunctionResponse struct {
			Response struct {
				Output string `json:"output"`
			} `json:"response"`
		} `json:"functionResponse"`
	}
	if json.Unmarshal(result, &parts) != nil || len(parts) == 0 {
		return end, false
	}
	text := strings.TrimSpace(parts[0].FunctionResponse.Response.Output)
	text = strings.TrimSuffix(strings.TrimPrefix(text, "<untrusted_context>\n"), "\n</untrusted_context>")
	text, ok = strings.CutPrefix(text, "Output: ")
	if !ok {
		return end, false
	}
	for {
		before, last := "", text
		if i := strings.LastIndexByte(text, '\n'); i >= 0 {
			before, last = text[:i], text[i+1:]
		}
		name, value, _ := strings.Cut(last, ": ")
		if before == "" || !isNote(name) {
			break
		}
		if name == "Exit Code" {
			end.exit, _ = strconv.Atoi(value) // zero if value is no number
		}
		text = before
	}
	if text != "(empty)" {
		end.output = text
	}
	return end, true
}

// isNote reports whether a line that starts with name is a note of the program, not output of the
// command.
func isNote(name string) bool {
	switch name {
	case "Exit Code", "Signal", "Background PIDs", "Process Group PGID":
		return true
	}
	return false
}

// unknownFolder is a folder that no rule can judge.
const unknownFolder = "~"

// folderOf returns the folder in which a command is to run, from the program's remark on it: "[in src] (Run the tests)". It
// is empty for the workspace. The model writes the folder and the rest, so a second bracket leaves the end of the folder open.
func folderOf(remark string) string {
	folder, ok := strings.CutPrefix(strings.TrimSuffix(remark, " [background]"), "[in ")
	if !ok {
		return ""
	}
	folder, rest, _ := strings.Cut(folder, "]")
	if folder == "" || strings.Contains(rest, "]") {
		return unknownFolder
	}
	return folder
}
