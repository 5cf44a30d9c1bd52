package command

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// procedural returns a fixture whose executor gets parameters as arguments of a shell script. change
// adds to the profile.
func procedural(t *testing.T, script string, change map[string]any) *fixture {
	t.Helper()
	f := newFixture(t, "", "")
	p := map[string]any{
		"type": "procedural", "command": []string{"/bin/sh", "lib/run.sh"},
		"files": []any{map[string]any{"path": "lib/run.sh", "text": script}},
	}
	for k, v := range change {
		p[k] = v
	}
	f.setProfile(p)
	f.SetUp()
	return f
}

func failure(t *testing.T, err error) *runnerscripts.ScriptFailure {
	t.Helper()
	failed, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
	if !ok {
		t.Fatalf("the error is %v", err)
	}
	if failed.Detail == nil {
		failed.Detail = new(runnerscripts.FailureDetail)
	}
	return failed
}

func TestProceduralExecutorGetsArgumentsAndItsOutputIsTheResult(t *testing.T) {
	t.Parallel()
	f := procedural(t, `if read -r x; then echo "input $x"; fi; printf '{"args":"%s"}\n' "$(printf %s "$*" | sed 's/"/\\"/g')"`, nil)
	c := f.Start()
	for range 2 { // it begins anew each time
		done, err := c.Prompt(t.Context(), "q", `{"name": "two words", "list": [1, "b"], "flag": true, "off": false, "none": null, "deep": {"a": 1}, "n": 12345678901234567890}`)
		if want := `{"args":"--deep {\"a\": 1} --flag --list 1,b --n 12345678901234567890 --name two words"}`; err != nil || string(done.ResultData) != want {
			t.Fatalf("result %s, %v; want %s", done.ResultData, err, want)
		}
	}
	f.SameAsTranscript()
}

func TestProceduralExecutorWithoutJSONHasItsOutputAsResult(t *testing.T) {
	t.Parallel()
	f := procedural(t, `echo plain; echo oops >&2; exit ${2:-0}`, nil)
	c := f.Start()
	done, err := c.Prompt(t.Context(), "q", `{}`)
	if want := `{"return_code":0,"stdout":"plain\n","stderr":"oops"}`; err != nil || string(done.ResultData) != want {
		t.Errorf("result %s, %v; want %s", done.ResultData, err, want)
	}
	_, err = c.Prompt(t.Context(), "q", `{"code": 3}`)
	if f := failure(t, err); f.Code != runnerscripts.FailQuery || string(f.Detail.ResultData) != `{"return_code":3,"stdout":"plain\n","stderr":"oops"}` {
		t.Errorf("failure %+v, data %s", f, f.Detail.ResultData)
	}
}

func TestAProceduralExecutorThatPrintsTooMuch(t *testing.T) {
	t.Parallel()
	f := procedural(t, `head -c 17000000 /dev/zero`, nil)
	if done, err := f.Start().Prompt(t.Context(), "q", `{}`); !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "16777216 bytes") {
		t.Errorf("%d bytes, %v", len(done.ResultData), err)
	}
}

func TestTheTimeOutOfAProceduralExecutorIsStatus124(t *testing.T) {
	t.Parallel()
	f := procedural(t, `echo begun; echo begun >&2; exec sleep 600`, map[string]any{"timeout_seconds": 7})
	if got := (executor.Profile{}).Timeout(); got != 300*time.Second {
		t.Errorf("without timeout_seconds it is %v", got)
	}
	c := f.Start()
	timedOut := make(chan time.Time, 1)
	c.(*conversation).timedOut = timedOut
	result := promptLater(t.Context(), c, `{}`)
	// It may take long to begin on a busy machine. What it prints first is in the pipe when this is logged.
	f.Out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeLog))
	timedOut <- time.Now()
	failed := failure(t, (<-result).err)
	if failed.Code != runnerscripts.FailTimeout || string(failed.Detail.ResultData) != `{"return_code":124,"stdout":"begun\n","stderr":"begun"}` ||
		!strings.Contains(failed.Message, "within 7s") {
		t.Errorf("failure %+v, data %s", failed, failed.Detail.ResultData)
	}
}

func TestAnExecutorEndsAtItsTimeOut(t *testing.T) {
	t.Parallel()
	f := procedural(t, `exec sleep 600`, map[string]any{"timeout_seconds": 1})
	if _, err := f.Start().Prompt(t.Context(), "q", `{}`); failure(t, err).Code != runnerscripts.FailTimeout {
		t.Errorf("error %v", err)
	}
}

func TestParametersThatCannotBeArgumentsStartNothing(t *testing.T) {
	t.Parallel()
	f := procedural(t, `echo started > started`, nil)
	c := f.Start()
	for prompt, want := range map[string]runnerscripts.Violation{
		`Count to three`:       {Path: "$", Message: `the prompt is no JSON object; give the parameters as one, such as {"name": "value"}`, SchemaPath: "type"},
		`null`:                 {Path: "$", Message: `the prompt is no JSON object; give the parameters as one, such as {"name": "value"}`, SchemaPath: "type"},
		`{"name": "a\u0000b"}`: {Path: "$.name", Message: "an argument cannot contain a NUL byte"},
		`{"name": ["a,b"]}`:    {Path: "$.name", Message: "element 0 of the list contains a comma, which separates elements; give an object or a text"},
		`{"-x": 1}`:            {Path: "$.-x", Message: "it cannot be the name of an option; use letters, digits, '_', '-' and '.'"},
	} {
		_, err := c.Prompt(t.Context(), "q", prompt)
		if f := failure(t, err); f.Code != runnerscripts.FailParameters || !slices.Equal(f.Detail.Violations, []runnerscripts.Violation{want}) {
			t.Errorf("%s: failure %+v, %+v", prompt, f, f.Detail)
		}
	}
	if _, err := os.Stat(filepath.Join(f.Session.Paths.Workspace, "started")); err == nil {
		t.Error("it was started")
	}
}

const aSchema = `{"type": "object"}`

func TestParametersOfASchemaReachAnExecutorThatConverses(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "", "")
	f.setProfile(map[string]any{
		"type": "x", "command": []string{"/bin/sh", "-c", "cat >> got; echo hello"}, "parameters_schema": json.RawMessage(aSchema),
	})
	c := f.Start()
	if _, err := c.Prompt(t.Context(), "q", "x"); failure(t, err).Code != runnerscripts.FailParameters {
		t.Errorf("error %v", err)
	}
	f.prompt(c, `{"name": "x"}`)
	// The failed prompt has reached no executor, so the conversation only begins.
	if got := f.file("got"); !strings.Contains(got, `"mode":"start"`) || !strings.Contains(got, `"parameters":{"name":"x"}`) {
		t.Errorf("it got %s", got)
	}
}

func TestTheResultIsJSONOfTheTurnOrOfTheAnswer(t *testing.T) {
	t.Parallel()
	for lifecycle, script := range map[string]string{
		"persistent": `while read -r line; do case $line in
			*words*) echo '{"type":"turn_complete","result":"just words"}';;
			*text*) echo '{"type":"agent_message_chunk","payload":{"content":{"type":"text","text":"thinking"}}}'; echo '{"type":"turn_complete","result":"{\"name\":1}"}';;
			*) echo '{"type":"turn_complete","result":{"name":1}}';; esac; done`,
		"one_shot": `read -r line; case $line in *words*) echo just words;; *) echo '{"name":1}';; esac`,
	} {
		f := newFixture(t, "", "")
		f.setProfile(map[string]any{
			"type": "x", "command": []string{"/bin/sh", "-c", script}, "lifecycle": lifecycle, "output_schema": json.RawMessage(aSchema),
		})
		c := f.Start()
		for prompt, want := range map[string]string{"object": `{"name":1}`, "words": "", "text": `{"name":1}`} {
			if done, err := c.Prompt(t.Context(), "q", prompt); err != nil || string(done.ResultData) != want {
				t.Errorf("%s, %s: result %s, %v", lifecycle, prompt, done.ResultData, err)
			}
		}
	}
}

func TestAnExecutorThatAnswersTwiceIsStartedAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "persistent", strings.Replace(echo, "crash)", `twice) printf '%s\n%s\n' '{"type":"turn_complete","result":"first"}' '{"type":"turn_complete","result":"second"}';;
	crash)`, 1))
	c := f.Start()
	f.prompt(c, "twice")
	f.Out.Wait(t.Context(), t, func(ev runnerscripts.Event) bool {
		return ev.Type == runnerscripts.TypeLog && strings.Contains(string(ev.Payload), "the executor completed a turn that was over") &&
			strings.Contains(string(ev.Payload), "second")
	})
	f.prompt(c, "next")
	if got := f.Said(); got != "first\necho: next\n" {
		t.Errorf("it said %q", got)
	}
	if f.file("starts") != "start\nstart\n" || !strings.Contains(f.file("got"), `"mode":"resume"`) {
		t.Errorf("it got %s", f.file("got"))
	}
	f.SameAsTranscript()
}

// TestOutputLargerThanThePipesIsRead proves that neither stream waits for the other.
func TestOutputLargerThanThePipesIsRead(t *testing.T) {
	t.Parallel()
	const flood = `i=0; while [ $i -lt 3000 ]; do echo "error line $i xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" >&2; echo "noise $i yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"; i=$((i+1)); done`
	for lifecycle, script := range map[string]string{
		"one_shot":   flood,
		"persistent": `while read -r line; do ` + flood + `; echo '{"type":"turn_complete","result":"end"}'; done`,
		"procedural": flood,
	} {
		t.Run(lifecycle, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "", "")
			p := map[string]any{"type": "x", "command": []string{"/bin/sh", "-c", script}, "lifecycle": lifecycle}
			if lifecycle == "procedural" {
				p["type"], p["lifecycle"] = "procedural", ""
			}
			f.setProfile(p)
			if _, err := f.Start().Prompt(t.Context(), "q", `{}`); err != nil {
				t.Fatal(err)
			}
			// What it prints to standard error may come after the end of the turn.
			f.Out.Wait(t.Context(), t, func(ev runnerscripts.Event) bool {
				return ev.Type == runnerscripts.TypeLog && strings.Contains(string(ev.Payload), "error line 2999 ")
			})
			logs := agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog)
			last := slices.ContainsFunc(logs, func(l runnerscripts.Log) bool { return strings.HasPrefix(l.Message, "error line 2999 ") })
			if lifecycle == "persistent" {
				last = last && strings.HasSuffix(f.Said(), "end\n") && len(logs) == 6000
			} else {
				last = last && strings.Contains(f.Said(), "noise 2999 ")
			}
			if !last {
				t.Errorf("%d logs, it said %d bytes", len(logs), len(f.Said()))
			}
		})
	}
}

// It is not parallel: a program that another test is starting would hold the executor open for writing, and
// a file that is written to cannot be started.
func TestTheFilesOfAnExecutorAreOutsideOfTheWorkspace(t *testing.T) {
	f := newFixture(t, "", "")
	f.setProfile(map[string]any{"type": "x", "command": []string{"lib/run"}, "files": []any{
		map[string]any{"path": "lib/run", "text": "#!/bin/sh\n" + `. "${0%/*}/../words"; pwd`, "mode": 0o755},
		map[string]any{"path": "words", "text": "echo hello"},
	}})
	f.SetUp()
	f.prompt(f.Start(), "x")
	if want := "hello\n" + f.Session.Paths.Workspace + "\n\n"; f.Said() != want {
		t.Errorf("it said %q, want %q", f.Said(), want)
	}
}
