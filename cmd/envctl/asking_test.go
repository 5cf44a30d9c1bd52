package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// answersFile is the end of the name of the asking agent's answers.
const answersFile = ".answers"

// askingAgent is an ACP agent. It asks for the permissions in the file that its prompt names, one
// after the other, and writes the answers into a file beside it.
func askingAgent() {
	type message struct {
		ID     json.RawMessage `json:"id,omitempty"`
		Method string          `json:"method,omitempty"`
		Params json.RawMessage `json:"params,omitempty"`
		Result json.RawMessage `json:"result,omitempty"`
	}
	send := func(m message) {
		line, err := json.Marshal(struct {
			Version string `json:"jsonrpc"`
			message
		}{"2.0", m})
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s\n", line)
	}
	var prompt json.RawMessage // the id of the request
	var name string
	var requests, answers []json.RawMessage
	ask := func() {
		if len(requests) == 0 {
			list, err := json.Marshal(answers)
			if err == nil {
				err = os.WriteFile(name+answersFile, list, 0o600)
			}
			if err != nil {
				panic(err)
			}
			send(message{ID: prompt, Result: json.RawMessage(`{"stopReason":"end_turn"}`)})
			return
		}
		send(message{ID: json.RawMessage(strconv.Itoa(len(requests))), Method: "session/request_permission", Params: requests[0]})
		requests = requests[1:]
	}
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var m message
		if err := json.Unmarshal(line, &m); err != nil {
			panic(err)
		}
		switch {
		case m.Method == "initialize":
			send(message{ID: m.ID, Result: json.RawMessage(`{"protocolVersion":1,"agentCapabilities":{}}`)})
		case m.Method == "session/new":
			send(message{ID: m.ID, Result: json.RawMessage(`{"sessionId":"s"}`)})
		case m.Method == "session/prompt":
			var p struct{ Prompt []struct{ Text string } }
			if err := json.Unmarshal(m.Params, &p); err != nil {
				panic(err)
			}
			prompt = m.ID
			dir, err := os.Getwd()
			if err != nil {
				panic(err)
			}
			name = p.Prompt[0].Text
			list, err := os.ReadFile(name)
			if err == nil {
				err = json.Unmarshal(bytes.ReplaceAll(list, []byte("WORKSPACE"), []byte(dir)), &requests)
			}
			if err != nil {
				panic(err)
			}
			ask()
		case m.Method == "" && prompt != nil:
			answers = append(answers, m.Result)
			ask()
		case m.ID != nil:
			send(message{ID: m.ID, Result: json.RawMessage("{}")})
		}
	}
}

// request is a permission request of the asking agent.
type request struct {
	Session string                           `json:"sessionId"`
	Call    runnerscripts.ToolCall           `json:"toolCall"`
	Options []runnerscripts.PermissionOption `json:"options"`
}

// asking is a terminal on which an agent asks.
type asking struct {
	*screen
	requests string // the name of the file
}

// asked runs an agent on a terminal that makes these requests one after the other.
func asked(t *testing.T, requests ...request) asking {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	agent := filepath.Join(t.TempDir(), "asking-agent")
	if err := os.Symlink(self, agent); err != nil {
		t.Fatal(err)
	}
	for i := range requests {
		requests[i].Session, requests[i].Call.ToolCallID = "s", fmt.Sprint("call", i)
	}
	list, err := json.Marshal(requests)
	if err != nil {
		t.Fatal(err)
	}
	config := file(t, "asking.yaml", "sandbox: local\nagent: {name: acp, command: ["+agent+"]}\n")
	name := file(t, "requests.json", string(list))
	return asking{startOnTerminal(t, "run", "-c", config, name), name}
}

// question returns the next question on the terminal.
func (s asking) question() string {
	s.t.Helper()
	s.wait("\nAllow?\r\n") // at the beginning of a line
	question := s.until("instead: ")
	for _, row := range strings.Split(question, "\n") {
		if n := utf8.RuneCountInString(row); n > 100 {
			s.t.Errorf("a row has %d characters: %q", n, row)
		}
	}
	return question
}

// answer types an answer.
func (s asking) answer(text string) {
	s.t.Helper()
	s.typeIn(text + "\r")
}

// chosen ends the program and fails the test unless the agent got answers with these texts.
func (s asking) chosen(want ...string) {
	s.t.Helper()
	s.ends()
	data, err := os.ReadFile(s.requests + answersFile)
	var got []json.RawMessage
	if err == nil {
		err = json.Unmarshal(data, &got)
	}
	if err != nil || len(got) != len(want) {
		s.t.Fatalf("the agent got %s, %v; want %q", data, err, want)
	}
	for i, answer := range got {
		if !strings.Contains(string(answer), want[i]) {
			s.t.Errorf("answer %d is %s, want %s", i, answer, want[i])
		}
	}
}
