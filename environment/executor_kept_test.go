package environment

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// keptExecutor is an executor that asks its host for a key and for permission when a file is there. It asks again if its host dies
// before the answer: then there is none.
const keptExecutor = `
import json, os, sys, time, urllib.request

lost = 0

def call(method, **params):
    global lost
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    if method != "report_message":
        message["id"] = 1
    request = urllib.request.Request(os.environ["AGENTENV_EXECUTOR_URL"], json.dumps(message).encode())
    request.add_header("Authorization", "Bearer " + os.environ["AGENTENV_SESSION_TOKEN"])
    while True:
        try:
            with urllib.request.urlopen(request) as answer:
                text = answer.read()
                return json.loads(text) if text else None
        except OSError: # the connection has ended without an answer
            lost += method == "request_permission"

for line in sys.stdin:
    message = json.loads(line)
    if message.get("type") == "shutdown":
        break
    prompt = message["parameters"]["prompt"]
    call("report_message", message="begun")
    while prompt == "go" and not os.path.exists(os.environ["GO_ON"]):
        time.sleep(0.02)
    allowed = call("request_permission", tool_name="Bash", tool_input={"command": "make"})
    key = call("get_api_key", credential_key="anthropic")
    result = {"key": len(key["result"]["api_key"]), "allowed": allowed, "lost": lost}
    print(json.dumps({"type": "turn_complete", "result": result}), flush=True)
`

// TestAnExecutorAsksTheNextProgram kills the program of an executor that works in a kept sandbox. The next program that attaches
// answers what the executor asks: afterwards, meanwhile, and again if the killed program had not answered.
func TestAnExecutorAsksTheNextProgram(t *testing.T) {
	for name, c := range map[string]struct {
		prompt, until string
		meanwhile     bool
		lost          bool
	}{
		"afterwards": {"go", string(runnerscripts.TypeLog), false, false},
		"meanwhile":  {"go", string(runnerscripts.TypeLog), true, false},
		"again":      {promptAskLater, string(runnerscripts.TypePermissionRequest), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			box, file := sandbox(t), filepath.Join(t.TempDir(), "go-on")
			cfg := Config{
				Sandbox: toKeep(box), OnPermission: AllowAll,
				Agent: Agent{
					Name: "command", Command: []string{"python3", "-c", keptExecutor}, Env: map[string]string{"GO_ON": file},
					Config: json.RawMessage(`{"lifecycle":"persistent","rpc":true}`),
				},
				Credentials: map[string]Credential{"anthropic": {Env: "TEST_HOST_KEY"}}, Deliver: []string{"anthropic"},
			}
			id := killedWhen(t, cfg, c.prompt, func(lines *bufio.Scanner) {
				for lines.Scan() && !strings.Contains(lines.Text(), c.until) {
					continue
				}
			})
			goOn := func() {
				if err := os.WriteFile(file, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if c.meanwhile {
				goOn()
			}
			cfg.Sandbox = box
			env, err := Attach(t.Context(), cfg, id)
			if err != nil {
				t.Fatal(err)
			}
			defer env.Close()
			if !c.meanwhile {
				goOn()
			}
			events, err := followed(t.Context(), env)
			if err != nil {
				t.Fatal(err)
			}
			var result struct {
				Key     int
				Allowed struct{ Result struct{ Allow bool } }
				Lost    int
			}
			done, err := runnerscripts.Payload[runnerscripts.QueryCompleted](events[len(events)-1])
			if err == nil {
				err = json.Unmarshal(done.ResultData, &result)
			}
			if err != nil || result.Key != len(hostKey) || !result.Allowed.Result.Allow || (result.Lost > 0) != c.lost {
				t.Errorf("it got %s, %v; the last event is %s", done.ResultData, err, events[len(events)-1].Payload)
			}
		})
	}
}
