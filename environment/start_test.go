package environment

import (
	"context"
	"strings"
	"testing"
)

// needsKey is an agent of the Agent Client Protocol that starts only with a key.
const needsKey = `test -n "$KEY" || { echo "give me a key" >&2; exit 3; }
while read -r line; do
  id=$(printf %s "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
  case $line in
  *'"initialize"'*) result='"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"resume":{}}}' ;;
  *'"session/resume"'*) result= ;;
  *'"session/new"'*) result='"sessionId":"s"' ;;
  *'"session/prompt"'*)
    echo '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"it works"}}}}'
    result='"stopReason":"end_turn"' ;;
  *) continue ;;
  esac
  echo '{"jsonrpc":"2.0","id":'$id',"result":{'$result'}}'
done`

// TestAStartThatFailedDoesNotFailTheNextQuery checks that an agent that does not start without a
// key works for a client that then attaches with a key.
func TestAStartThatFailedDoesNotFailTheNextQuery(t *testing.T) {
	t.Parallel()
	box := sandbox(t)
	env, err := Create(t.Context(), Config{Sandbox: toKeep(box), Agent: Agent{Name: "acp", Command: shell(needsKey)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Remove(context.WithoutCancel(t.Context()), box, env.ID()); err != nil {
			t.Error(err)
		}
	})
	if _, err := collect(t.Context(), env, Query{Prompt: "go"}); err == nil || !strings.Contains(err.Error(), "give me a key") {
		t.Errorf("without a key: %v", err)
	}
	if err := env.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		again, err := Attach(t.Context(), Config{Sandbox: box, Agent: Agent{Env: map[string]string{"KEY": "test-key"}}}, env.ID())
		if err != nil {
			t.Fatal(err)
		}
		if text := say(t, again, "go"); !strings.Contains(text, "it works") {
			t.Errorf("with a key it says %q", text)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
}
