package handoff

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// long returns a conversation that is larger than any context.
func long(turns int) Conversation {
	c := Conversation{Agent: "claude"}
	for i := range turns {
		at := time.Unix(int64(i), 0)
		c.Items = append(c.Items,
			Item{Kind: User, Time: at, Text: "prompt " + strings.Repeat("ä", 500)},
			Item{Kind: Tool, Time: at, Call: &Call{Name: "Bash", Input: []byte(`{"command":"x"}`), Output: strings.Repeat("日", 10_000)}},
			Item{Kind: Agent, Time: at, Text: "answer"})
	}
	return c
}

func TestLongConversationKeepsItsEnd(t *testing.T) {
	t.Parallel()
	c := long(200)
	c.Items[len(c.Items)-1].Text = "the last words"
	b := c.Bounded()
	size := 0
	for _, it := range b.Items {
		size += it.size()
		if !utf8.ValidString(it.Text) || it.Call != nil && !utf8.ValidString(it.Call.Output) {
			t.Error("a character was cut")
		}
	}
	if size > maxWhole+maxWords || len(b.Items) < 30 {
		t.Errorf("%d items, %d bytes", len(b.Items), size)
	}
	first, last := b.Items[0], b.Items[len(b.Items)-1]
	if first.Kind != User || !strings.Contains(first.Text, "is left out") || !strings.Contains(first.Text, "prompt") || b.Items[1].Kind != User {
		t.Errorf("it begins with %.300q", first.Text)
	}
	if last.Text != "the last words" {
		t.Errorf("it ends with %q", last.Text)
	}
	if s := c.Summary(); len(s) > 2*maxSummary || !strings.Contains(s, "the last words") {
		t.Errorf("the summary has %d bytes", len(s))
	}
}

func TestLongInputStaysJSON(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]string{
		"a string":     `{"content":"` + strings.Repeat("x", 100_000) + `","path":"a.txt"}`,
		"many strings": `{"list":["` + strings.Repeat(`x","`, 50_000) + `"]}`,
	} {
		got := cutInput([]byte(in))
		if len(got) > maxInput || got[0] != '{' {
			t.Errorf("%s: %d bytes, %.80q", name, len(got), got)
		}
	}
}

// fake is a driver. If fails is set, its Setup fails for a request with a transcript.
type fake struct {
	agent.Driver
	fails    bool
	restored []string
	replayed error
}

func (f *fake) Setup(_ context.Context, req runnerscripts.SetupRequest) (runnerscripts.SetupData, error) {
	if req.Transcript != nil {
		f.restored = append(f.restored, req.Transcript.Main)
		if f.fails {
			return runnerscripts.SetupData{}, errors.New("the import has failed")
		}
	}
	return runnerscripts.SetupData{AgentVersion: "1"}, nil
}

func (f *fake) Replay(_ context.Context, _ runnerscripts.Session, t runnerscripts.Transcript, out agent.Sink) error {
	for i, text := range strings.Fields(t.Main) {
		typ := []runnerscripts.EventType{runnerscripts.TypeUserMessage, runnerscripts.TypeAgentMessage}[i%2]
		out.EmitAt(time.Unix(int64(i), 0), "", typ, runnerscripts.ContentChunk{
			BlockID: text, Content: runnerscripts.Content{Type: "text", Text: text},
		})
	}
	return f.replayed
}

// among returns a FindDriver among some drivers.
func among(drivers map[string]agent.Driver) FindDriver {
	return func(name string) (agent.Driver, error) {
		if d := drivers[name]; d != nil {
			return d, nil
		}
		return nil, fmt.Errorf("there is no agent %q", name)
	}
}

type converting struct{ *fake }

func (converting) Convert(_ runnerscripts.Session, c Conversation) (runnerscripts.Transcript, error) {
	return runnerscripts.Transcript{Main: "converted " + c.Items[0].Text}, nil
}
func (converting) Restores() runnerscripts.Restored { return runnerscripts.RestoredConverted }

func TestSetUpTakesTheBestWay(t *testing.T) {
	t.Parallel()
	summary := runnerscripts.TranscriptRestored{From: "old", Way: runnerscripts.RestoredSummary}
	failed := summary
	failed.Reason = "the import has failed"
	tests := map[string]struct {
		to       agent.Driver
		main     string
		replayed error
		want     runnerscripts.TranscriptRestored
		err      runnerscripts.FailureCode
	}{
		"converted":           {to: converting{&fake{}}, main: "hello", want: runnerscripts.TranscriptRestored{From: "old", Way: runnerscripts.RestoredConverted}},
		"a summary":           {to: &fake{}, main: "hello", want: summary},
		"a failed conversion": {to: converting{&fake{fails: true}}, main: "hello", want: failed},
		"nothing":             {to: &fake{}},
		"no words":            {to: &fake{}, main: " ", err: runnerscripts.FailInvalidRequest},
		"unreadable":          {to: &fake{}, main: "hello", replayed: errors.New("damaged"), err: runnerscripts.FailInvalidRequest},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := agenttest.NewSession(t, agent.NewUUID(), "new")
			data, err := SetUp(t.Context(), among(map[string]agent.Driver{"new": tt.to, "old": &fake{replayed: tt.replayed}}), runnerscripts.SetupRequest{
				Session: s, Transcript: &runnerscripts.Transcript{Agent: "old", Main: tt.main},
			})
			if tt.err != "" {
				if !agenttest.HasCode(err, tt.err) {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil || data.Restored != tt.want {
				t.Errorf("%+v, %v", data, err)
			}
			_, err = os.Stat(prefaceFile(s))
			if has := err == nil; has != (tt.want.Way == runnerscripts.RestoredSummary) {
				t.Errorf("there is a summary: %v", has)
			}
		})
	}
}

func TestUnknownAgentOfATranscriptIsRefused(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSession(t, agent.NewUUID(), "new")
	_, err := SetUp(t.Context(), among(map[string]agent.Driver{"new": &fake{}}), runnerscripts.SetupRequest{
		Session: s, Transcript: &runnerscripts.Transcript{Agent: "nobody", Main: "x"},
	})
	if !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) || !strings.Contains(err.Error(), `"nobody"`) {
		t.Errorf("error %v", err)
	}
}

// talk is a conversation that records its prompts.
type talk struct {
	agent.Conversation
	prompts []string
	stop    runnerscripts.StopReason
	err     error
}

func (c *talk) Prompt(_ context.Context, _, text string, _ ...runnerscripts.Attachment) (runnerscripts.QueryCompleted, error) {
	c.prompts = append(c.prompts, text)
	return runnerscripts.QueryCompleted{StopReason: c.stop}, c.err
}

func TestSummaryComesBeforeTheFirstPromptThatIsAnswered(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSession(t, agent.NewUUID(), "new")
	if err := writePreface(s, long(1).Summary()); err != nil {
		t.Fatal(err)
	}
	c := &talk{}
	p := WithPreface(c, s)
	for _, step := range []struct {
		prompt string
		stop   runnerscripts.StopReason
		err    error
		told   bool
	}{
		{"/compact", runnerscripts.StopEndTurn, nil, false},
		{"first", "", errors.New("overloaded"), true},
		{"again", runnerscripts.StopCancelled, nil, true},
		{"third", runnerscripts.StopEndTurn, nil, true},
		{"last", runnerscripts.StopEndTurn, nil, false},
	} {
		c.stop, c.err = step.stop, step.err
		if _, err := p.Prompt(t.Context(), "q", step.prompt); !errors.Is(err, step.err) {
			t.Fatal(err)
		}
		sent := c.prompts[len(c.prompts)-1]
		if told := strings.HasPrefix(sent, prefaceStart); told != step.told || !strings.HasSuffix(sent, step.prompt) {
			t.Errorf("%q: the agent was told what came before: %v", step.prompt, told)
		}
		shown := WithoutPreface(runnerscripts.TypeUserMessage, runnerscripts.ContentChunk{Content: runnerscripts.Content{Type: "text", Text: sent}})
		if got := shown.(runnerscripts.ContentChunk).Content.Text; got != step.prompt {
			t.Errorf("shown is %.100q", got)
		}
	}
}
