package gemini

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// replayVariable makes the test binary replay a recorded run of the Gemini CLI. Its value is the
// common prefix of the paths of the run's files.
const replayVariable = "GEMINI_TEST_REPLAY"

// sessionFolder stands for the session's folder in recorded runs.
const sessionFolder = "/session"

// rpcLine is a line of JSON-RPC.
type rpcLine struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
}

// runReplay plays the program: it writes the session's file and prints the lines of a recorded run.
// It prints a reply after it has read the request. It prints a notification after it has read the
// request of the next reply in the run, but the commands at once: the driver waits for them. After it
// prints a request to the client, it waits for the answer.
func runReplay(in io.Reader, out io.Writer, run string) error {
	folder := filepath.Dir(os.Getenv("HOME"))
	lines := strings.Split(strings.TrimSpace(recordedFile(run+".lines.jsonl", folder)), "\n")
	chat := recordedFile(run+".chat.jsonl", folder)
	id := parse(chat).id
	s := runnerscripts.Session{}
	s.Paths.Home = os.Getenv("HOME")
	if err := os.MkdirAll(chatsDir(s), 0o700); err != nil {
		return err
	}
	file := filepath.Join(chatsDir(s), sessionPrefix+"2026-01-01T00-00-"+id[:8]+fileSuffix)
	if err := os.WriteFile(file, []byte(chat), 0o600); err != nil {
		return err
	}
	client := runnerscripts.NewLineReader(in, 0)
	seen := map[string]bool{}
	await := func(key string) error {
		for !seen[key] {
			line, err := client.Next()
			if err != nil {
				return fmt.Errorf("wait for %s: %w", key, err)
			}
			var l rpcLine
			if err := json.Unmarshal(line, &l); err != nil {
				return err
			}
			seen[keyOf(l)] = true
		}
		return nil
	}
	for i, line := range lines {
		var l rpcLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			return err
		}
		key := nextReply(lines[i:])
		if key != "" && !strings.Contains(line, string(runnerscripts.TypeCommands)) {
			if err := await(key); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
		if l.Method != "" && l.ID != nil {
			if err := await("reply " + string(l.ID)); err != nil {
				return err
			}
		}
	}
	_, err := io.Copy(io.Discard, in)
	return err
}

// keyOf returns the key of a message of the client.
func keyOf(l rpcLine) string {
	if l.Method == "" {
		return "reply " + string(l.ID)
	}
	return "request " + string(l.ID)
}

// nextReply returns the key of the request for the first reply in lines, or "" if there is none.
func nextReply(lines []string) string {
	for _, line := range lines {
		var l rpcLine
		if json.Unmarshal([]byte(line), &l) == nil && l.Method == "" && l.ID != nil {
			return "request " + string(l.ID)
		}
	}
	return ""
}

// recordedFile returns a file of a recorded run, with the paths of a session in folder.
func recordedFile(file, folder string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	return strings.ReplaceAll(string(data), sessionFolder+"/", folder+"/")
}

func testdata(name, kind string) string { return filepath.Join("testdata", name+"."+kind) }
