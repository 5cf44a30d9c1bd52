package gemini

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// loaded returns the history that the program makes of a session file, as it loads it, in short:
// "user hi; model I use a tool. call(a); user response(a)". The program's code has
// loadConversationRecord and convertSessionToClientHistory for it.
func loaded(t *testing.T, text string) string {
	t.Helper()
	type record struct {
		ID, Type  string
		Content   content
		ToolCalls []struct {
			ID     string
			Result []part
		}
	}
	var order []string
	messages := map[string]record{}
	keep := func(r record) {
		if _, known := messages[r.ID]; !known {
			order = append(order, r.ID)
		}
		messages[r.ID] = r
	}
	for line := range strings.Lines(text) {
		var l struct {
			record
			Set *struct{ Messages []record } `json:"$set"`
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		switch {
		case l.ID != "":
			keep(l.record)
		case l.Set != nil && l.Set.Messages != nil:
			order, messages = nil, map[string]record{}
			for _, m := range l.Set.Messages {
				keep(m)
			}
		}
	}
	var turns []string
	add := func(role string, words []string) {
		if len(words) > 0 {
			turns = append(turns, role+" "+strings.Join(words, " "))
		}
	}
	for _, id := range order {
		m := messages[id]
		words, calls := parts(m.Content), strings.Contains(strings.Join(parts(m.Content), " "), "call(")
		if m.Type == "user" {
			if !strings.HasPrefix(m.Content.text(), sessionContext) {
				add("user", words)
			}
			continue
		}
		var results []string
		for _, c := range m.ToolCalls {
			if !calls {
				words = append(words, "call("+c.ID+")")
			}
			results = append(results, parts(c.Result)...)
		}
		add("model", words)
		add("user", results)
	}
	return strings.Join(turns, "; ")
}

func parts(list []part) []string {
	var words []string
	for _, p := range list {
		var call struct{ ID string }
		switch {
		case p.FunctionResponse != nil:
			words = append(words, "response("+p.FunctionResponse.ID+")")
		case json.Unmarshal(p.FunctionCall, &call) == nil && call.ID != "":
			words = append(words, "call("+call.ID+")")
		case p.Text != "":
			words = append(words, p.Text)
		}
	}
	return words
}

// The records of session files, in short.
const header = `{"sessionId":"20c313fb-5485-40b5-aa12-d96e973893ee","projectHash":"x","kind":"main"}`

func userRecord(id, text string) string {
	return fmt.Sprintf(`{"id":%q,"timestamp":"2026-11-21T16:59:55.000Z","type":"user","content":[{"text":%q}]}`, id, text)
}

func sentRecord(id string, calls ...string) string {
	return fmt.Sprintf(`{"id":%q,"timestamp":"2026-11-21T16:59:56.000Z","type":"user","content":[%s]}`, id, responses(calls...))
}

func agentRecord(id, text string, calls ...string) string {
	list := []string{}
	for _, c := range calls {
		name, results, _ := strings.Cut(c, "=")
		result := "null"
		if results != "" {
			result = "[" + responses(strings.Split(results, ",")...) + "]"
		}
		list = append(list, fmt.Sprintf(`{"id":%q,"name":"run_shell_command","args":{"command":"ls"},"status":"success","result":%s,`+
			`"timestamp":"2026-11-21T16:59:57.000Z","description":"lists"}`, name, result))
	}
	return fmt.Sprintf(`{"id":%q,"timestamp":"2026-11-21T16:59:56.000Z","type":"gemini","content":%q,"toolCalls":[%s]}`, id, text, strings.Join(list, ","))
}

func responses(calls ...string) string {
	var list []string
	for _, c := range calls {
		list = append(list, fmt.Sprintf(`{"functionResponse":{"id":%q,"name":"run_shell_command","response":{"error":"no"}}}`, c))
	}
	return strings.Join(list, ",")
}

func setRecord(records ...string) string {
	return `{"$set":{"messages":[` + strings.Join(records, ",") + `],"lastUpdated":"2026-11-21T17:00:00.000Z"}}`
}

// calledRecord is a message as the program writes it when it writes its history again.
func calledRecord(id, text string, calls ...string) string {
	list := []string{fmt.Sprintf(`{"text":%q}`, text)}
	for _, c := range calls {
		list = append(list, fmt.Sprintf(`{"functionCall":{"id":%q,"name":"run_shell_command","args":{"command":"ls"}}}`, c))
	}
	return fmt.Sprintf(`{"id":%q,"timestamp":"2026-11-21T16:59:56.000Z","type":"gemini","content":[%s]}`, id, strings.Join(list, ","))
}

// TestTheProgramLoadsEachCallWithOneResult checks what the program loads from the file that the driver
// prepares, and that the conversation in the transcript is the one before.
func TestTheProgramLoadsEachCallWithOneResult(t *testing.T) {
	t.Parallel()
	const asked = "user hi; model I call. call(a); user response(a); model done; user go on"
	for name, tt := range map[string]struct {
		records []string
		loaded  string
		told    string
	}{
		"a result is recorded twice": {
			[]string{userRecord("1", "hi"), agentRecord("2", "I call."), agentRecord("t", "", "a=a"), sentRecord("3", "a"), agentRecord("4", "done"), userRecord("5", "go on")},
			asked, "hi|I call.|a|done|go on",
		},
		"the program has loaded such a session twice": {
			[]string{
				userRecord("1", "hi"), agentRecord("2", "I call."), agentRecord("t", "", "a=a"), sentRecord("3", "a"), agentRecord("4", "done"),
				setRecord(userRecord("1", "hi"), agentRecord("2", "I call."), calledRecord("t", "", "a"), sentRecord("t_response", "a"), sentRecord("3", "a"), agentRecord("4", "done")),
				setRecord(userRecord("1", "hi"), agentRecord("2", "I call."), agentRecord("t", "", "a=a,a"), sentRecord("t_response", "a", "a"), sentRecord("t_response_response", "a"), sentRecord("3", "a"), agentRecord("4", "done")),
				userRecord("5", "go on"),
			},
			asked, "hi|I call.|a|done|go on",
		},
		"one record has the calls of all turns": {
			[]string{
				userRecord("1", "hi"), agentRecord("2", "I call."), agentRecord("t", "", "a=a"), sentRecord("3", "a"), agentRecord("4", ""),
				agentRecord("t", "", "a=a", "b=b"), agentRecord("t", "", "a=a", "b=b", "c=c"), sentRecord("5", "b", "c"), agentRecord("6", "done"),
			},
			"user hi; model I call. call(a); user response(a); model call(b) call(c); user response(b) response(c); model done", "hi|I call.|a|b|c|done",
		},
		"a later process adds its calls to an old message": {
			[]string{
				userRecord("1", "hi"), agentRecord("2", "old", "a=a"), userRecord("3", "go on"), agentRecord("4", "I call."),
				agentRecord("2", "old", "a=a", "b=b"), sentRecord("5", "b"), agentRecord("6", "done"),
			},
			"user hi; model old call(a); user response(a); user go on; model I call. call(b); user response(b); model done", "hi|old|a|go on|I call.|b|done",
		},
		"a rejected call has a result only": {
			[]string{userRecord("1", "hi"), agentRecord("2", "I call."), sentRecord("3", "a"), agentRecord("4", "done"), userRecord("5", "go on")},
			asked, "hi|I call.|a|done|go on",
		},
		"the results of parallel calls are mixed": {
			[]string{userRecord("1", "hi"), agentRecord("2", "I call.", "a=a,b", "b=a,b"), sentRecord("3", "a", "b"), agentRecord("4", "done")},
			"user hi; model I call. call(a) call(b); user response(a) response(b); model done", "hi|I call.|a|b|done",
		},
		"a call without a result": {
			[]string{userRecord("1", "hi"), agentRecord("2", "I call.", "a"), userRecord("3", "go on")},
			"user hi; model I call. call(a); user response(a); user go on", "hi|I call.|a|go on",
		},
		"a result whose call is forgotten": {
			[]string{userRecord("1", "hi"), agentRecord("2", "I call."), agentRecord("t", "", "a=a"), sentRecord("3", "a"), setRecord(sentRecord("3", "a")), userRecord("4", "go on")},
			"user go on", "hi|I call.|a|go on",
		},
		"a prompt that was taken back": {
			[]string{
				userRecord("1", "hi"), agentRecord("2", "I call."), agentRecord("t", "", "a=a"), sentRecord("3", "a"), agentRecord("4", "done"), userRecord("x", "stop"),
				setRecord(userRecord("1", "hi"), calledRecord("2", "I call.", "a"), sentRecord("3", "a"), agentRecord("4", "done")), userRecord("5", "go on"),
			},
			asked, "hi|I call.|a|done|stop|go on",
		},
		"a history that was shortened, and then loaded": {
			[]string{
				userRecord("1", "hi"), agentRecord("2", "I call."), agentRecord("t", "", "a=a"), sentRecord("3", "a"), agentRecord("4", "done"),
				userRecord("6", "a summary"), calledRecord("7", "I call.", "a"), sentRecord("8", "a"), agentRecord("9", " done "),
				setRecord(userRecord("6", "a summary"), calledRecord("7", "I call.", "a"), sentRecord("8", "a"), agentRecord("9", " done ")),
				userRecord("10", "hi"),
				setRecord(userRecord("6", "a summary"), calledRecord("7", "I call.", "a"), sentRecord("8", "a"), agentRecord("9", " done "), userRecord("10", "hi")),
			},
			"user a summary; model I call. call(a); user response(a); model  done ; user hi", "hi|I call.|a|done|a summary|hi",
		},
		"a message that only the program knows": {
			[]string{
				userRecord("1", "hi"), agentRecord("2", "done"),
				setRecord(userRecord("c", sessionContext), userRecord("1", "hi"), agentRecord("x", "[interrupted]"), agentRecord("2", "done")), userRecord("3", "go on"),
			},
			"user hi; model [interrupted]; model done; user go on", "hi|done|go on",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := agenttest.NewSession(t, agent.NewUUID(), programName)
			text := header + "\n" + strings.Join(tt.records, "\n") + "\n"
			if err := restore(s, runnerscripts.Transcript{Main: text}); err != nil {
				t.Fatal(err)
			}
			for range 2 { // it does not change any more
				l := &live{session: s, workspace: s.Paths.Workspace, out: agenttest.NewRecorder()}
				h, err := l.history()
				if err != nil || h.SessionID == "" {
					t.Fatalf("prepared: %+v, %v", h, err)
				}
				file, err := agent.ReadIfExists(keptFile(s, h.SessionID))
				if err != nil {
					t.Fatal(err)
				}
				if got := loaded(t, file); got != tt.loaded {
					t.Errorf("the program loads\n%q, want\n%q from\n%s", got, tt.loaded, file)
				}
				if want := streamed(t, file); h.Updates != want {
					t.Errorf("the driver waits for %d updates of the old conversation, the program sends %d", h.Updates, want)
				}
				if got := told(t, file); got != tt.told {
					t.Errorf("the transcript tells %q, want %q", got, tt.told)
				}
			}
			if got := told(t, text); got != tt.told {
				t.Errorf("the transcript before told %q, want %q", got, tt.told)
			}
		})
	}
}

// streamed returns the number of updates that the program sends when it loads a file that the driver
// has prepared: each message is there once.
func streamed(t *testing.T, text string) int {
	t.Helper()
	n := 0
	for line := range strings.Lines(text) {
		var m struct {
			ID, Type  string
			Content   content
			ToolCalls []json.RawMessage
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		if m.ID == "" {
			continue
		}
		n += len(m.ToolCalls)
		if strings.TrimSpace(m.Content.text()) != "" {
			n++
		}
	}
	return n
}

// told returns the texts and calls in the conversation of a transcript.
func told(t *testing.T, text string) string {
	t.Helper()
	out := agenttest.NewRecorder()
	if err := replay(t.Context(), runnerscripts.Transcript{Main: text}, "/w", out); err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, b := range agenttest.Fold(t, out.All()).Blocks {
		if b.Tool != nil {
			list = append(list, b.Tool.ToolCallID)
		} else {
			list = append(list, strings.TrimSpace(b.Text))
		}
	}
	return strings.Join(list, "|")
}

// TestALongConversationIsStored checks that a transcript has at most the given length, with the
// outputs of the last calls, and that replaced records are left out.
func TestALongConversationIsStored(t *testing.T) {
	t.Parallel()
	const most = 300 << 10
	long := strings.Repeat("x\n", 16<<10)
	records := []string{header}
	var calls []string
	for i := range 10 {
		calls = append(calls, fmt.Sprintf(`{"id":"c%d","name":"run_shell_command","status":"success","result":[{"functionResponse":{"id":"c%d","name":"n","response":{"output":%s}}}]}`,
			i, i, mustMarshal(long+fmt.Sprint("end of ", i))))
		records = append(
			records, userRecord(fmt.Sprint("u", i), fmt.Sprint("prompt ", i)), agentRecord(fmt.Sprint("g", i), "I call."),
			fmt.Sprintf(`{"id":"t","timestamp":"2026-11-21T16:59:56.000Z","type":"gemini","content":"","toolCalls":[%s]}`, strings.Join(calls, ",")),
			sentRecord(fmt.Sprint("s", i), fmt.Sprint("c", i)), agentRecord(fmt.Sprint("a", i), "done"),
		)
		calls = calls[max(0, len(calls)-2):] // enough to be replaced
	}
	text := parse(strings.Join(records, "\n")).within(most)
	if len(text) > most || len(text) < most/2 {
		t.Fatalf("the text has %d bytes", len(text))
	}
	for i := range 10 {
		if !strings.Contains(text, fmt.Sprint("prompt ", i)) || !strings.Contains(text, fmt.Sprint("end of ", i)) {
			t.Errorf("prompt %d or the end of its output is missing", i)
		}
	}
	if n := strings.Count(text, "bytes are left out"); n == 0 || n == 10 {
		t.Errorf("%d outputs are shortened", n)
	}
	if got := loaded(t, text); strings.Count(got, "call(") != 10 || strings.Count(got, "response(") != 10 {
		t.Errorf("the program loads %s", got)
	}
}

// TestAnOutputThatTheModelHasNotAnsweredIsShortened checks an output that is longer than the context
// of the model.
func TestAnOutputThatTheModelHasNotAnsweredIsShortened(t *testing.T) {
	t.Parallel()
	call := func(id string) string {
		return strings.ReplaceAll(agentRecord(id, "I call.", id+"=c"), `"no"`, string(mustMarshal(strings.Repeat("long ", maxWords))))
	}
	text := parse(strings.Join([]string{header, userRecord("1", "hi"), call("2"), agentRecord("3", "done"), userRecord("4", "go on"), call("5"), userRecord("6", "go on"), call("7")}, "\n")).text()
	var cut []bool
	for line := range strings.Lines(text) {
		if strings.Contains(line, "functionResponse") {
			cut = append(cut, len(line) < 2*maxWords)
		}
	}
	if !slices.Equal(cut, []bool{false, true, true}) {
		t.Errorf("shortened: %v", cut)
	}
}
