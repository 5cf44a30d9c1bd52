package environment

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// The path of accepted attachments is part of the contract of sessions.
func TestAttachmentsAreRefusedBeforeTheAgentIsStarted(t *testing.T) {
	t.Parallel()
	env := create(t, Config{Agent: Agent{Name: "command", Command: []string{"cat"}}})
	for name, c := range map[string]struct {
		attachment runnerscripts.Attachment
		want       error
		says       string
	}{
		"an agent without images": {runnerscripts.Attachment{Data: []byte("GIF89a")}, errors.ErrUnsupported, `(image.gif, image/gif): the agent "command" accepts no images`},
		"an empty one":            {runnerscripts.Attachment{Name: "a"}, fs.ErrInvalid, `"a" is empty`},
	} {
		events, err := collect(t.Context(), env, Query{Prompt: "look", Attachments: []runnerscripts.Attachment{c.attachment}})
		if len(events) != 0 || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %s, %v", name, types(events), err)
		}
	}
	unknown := Config{Agent: Agent{Name: "nobody"}}
	if _, err := unknown.CheckAttachments(t.Context(), []runnerscripts.Attachment{{Data: []byte("text")}}); !errors.Is(err, ErrConfig) {
		t.Errorf("an unknown agent: %v", err)
	}
}

// A script of one's own says itself what it accepts.
func TestAScriptOfOnesOwnGetsAttachments(t *testing.T) {
	t.Parallel()
	env := withQuery(t, `read -r request; case $request in *'"attachments":[{"name":"image.gif","media_type":"image/gif","data":"R0lGODlh"}]'*) end=query_completed;; *) end=query_failed;; esac
echo '{"type":"query_started","query_id":"a","payload":{"prompt":"look"}}'
echo "{\"type\":\"$end\",\"query_id\":\"a\",\"payload\":{\"stop_reason\":\"end_turn\"}}"
echo '{"type":"result","ok":true}'`)
	events, err := collect(t.Context(), env, Query{Prompt: "look", ID: "a", Attachments: []runnerscripts.Attachment{{Data: []byte("GIF89a")}}})
	if err != nil {
		t.Errorf("%s, %v", types(events), err)
	}
}
