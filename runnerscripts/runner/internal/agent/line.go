package agent

import (
	"bytes"
	"encoding/json"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// RawLine returns a copy of an agent's line as the payload of a TypeRaw event. A line that is no
// JSON becomes a JSON string.
func RawLine(line []byte) json.RawMessage {
	if json.Valid(line) {
		return bytes.Clone(line)
	}
	data, _ := json.Marshal(string(line)) // marshaling a string never fails
	return data
}

// EmitUnreadable reports a line that a driver cannot parse. It is not an error: the agent may
// be newer than the driver. program is its name in messages.
func EmitUnreadable(out Sink, program string, line []byte, err error) {
	EmitLine(out, program+" printed a line that is not understood", line, err)
}

// EmitLine warns of a line of an agent: what is wrong with it, and why.
func EmitLine(out Sink, what string, line []byte, err error) {
	const most = 1024
	shown := string(bytes.ToValidUTF8(line[:min(len(line), most)], []byte("\uFFFD")))
	data, _ := json.Marshal(map[string]string{"line": shown})
	out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
		Level: "warn", Message: what + ": " + err.Error(), Data: data,
	})
}
