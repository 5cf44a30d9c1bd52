package environment

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// counting is a persistent executor. The result of a turn has its number, the mode of the process, and what the environment says.
const counting = `while read -r line; do
	case $line in
	*'"type":"shutdown"'*) exit;;
	*'"schema_version":"2.2","mode":"start"'*) mode=start;;
	*'"schema_version":"2.2","mode":"resume"'*) mode=resume;;
	esac
	n=$((n + 1))
	printf '{"type":"turn_complete","result":{"turn":%d,"mode":"%s","session":"%s","key":"%s"}}\n' "$n" "$mode" "$AGENT_SESSION_ID" "$TEST_HOST_KEY"
done`

// An executor runs unchanged in a sandbox of every type: with its files, for several turns, and without the keys of the host.
func TestAnExecutorRunsEverywhere(t *testing.T) {
	config, err := json.Marshal(executor.Profile{
		Type: "demo", Command: []string{"sh", "count.sh"}, Lifecycle: executor.Persistent,
		Files: []runnerscripts.WorkspaceFile{{Path: "count.sh", Content: []byte(counting)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	everywhere(t, func(t *testing.T, box Sandbox) {
		env := create(t, Config{Sandbox: box, Agent: Agent{Name: commandAgent, Config: config}})
		for turn := 1; turn <= 2; turn++ {
			done, err := env.Run(t.Context(), "go")
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf(`{"turn":%d,"mode":"start","session":"%s","key":""}`, turn, env.SessionID()); string(done.ResultData) != want {
				t.Errorf("turn %d: %s, want %s", turn, done.ResultData, want)
			}
		}
		workspaceOf(t, env).mustBe(t, tree{})
	})
}
