package replay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const (
	anthropic = runnerscripts.APIAnthropic
	path      = "/v1/messages"
	secret    = "sk-the-secret"
)

func post(t testing.TB) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://api.example"+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func says(text string) string {
	return fmt.Sprintf(`{"model":"m","system":%q,"messages":[{"role":"user","content":%q}]}`, "system prompt", text)
}

// record records calls, pairs of a body and its answer, and returns the file.
func record(t testing.TB, places Places, calls ...[2]string) string {
	t.Helper()
	var file bytes.Buffer
	r, err := NewRecorder(&file, places, []string{secret})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range calls {
		resp, err := r.Send(anthropic, path, r.Form([]byte(c[0])), post(t), func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}, "X-Request-Id": {"1"}}, Body: io.NopCloser(strings.NewReader(c[1]))}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if data, err := io.ReadAll(resp.Body); err != nil || string(data) != c[1] {
			t.Fatalf("the answer was changed: %q, %v", data, err)
		}
		if err := errors.Join(resp.Body.Close(), r.Err()); err != nil {
			t.Fatal(err)
		}
	}
	return file.String()
}

func open(t testing.TB, file string, places Places) *Player {
	t.Helper()
	p, err := Open(strings.NewReader(file), places)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// play sends a call and returns the answer.
func play(t testing.TB, p *Player, body string) (string, error) {
	t.Helper()
	resp, err := p.Send(anthropic, path, p.Form([]byte(body)), post(t))
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" || resp.Request == nil {
		t.Errorf("the answer is %+v, %v", resp, err)
	}
	return string(data), resp.Body.Close()
}

func TestCallsAreFoundByTheirFormThenByOrder(t *testing.T) {
	p := open(t, record(t, nil, [2]string{says("a"), "1"}, [2]string{says("b"), "2"}, [2]string{says("a"), "3"}), nil)
	for _, c := range [][2]string{{"b", "2"}, {"a", "1"}, {"a", "3"}, {"a", "3"}, {"b", "2"}} {
		if got, err := play(t, p, says(c[0])); err != nil || got != c[1] {
			t.Errorf("%s: %q, %v", c[0], got, err)
		}
	}
}

func TestWhatDiffersFromRunToRunIsMasked(t *testing.T) {
	for _, c := range [][2]string{
		{"at 2026-11-24T10:11:12.345Z", "at 2027-01-01"},
		{"Today is Tue Nov 24 2026.", "Today is Wednesday, December 2, 2026."},
		{"-rw-r--r-- 1 root root 5 Nov 24 10:11 a", "-rw-r--r-- 1 root root 5 Jan  2  2025 a"},
		{"id 0f2b7f3a-1111-4222-8333-444455556666", "id 1f2b7f3a-1111-4222-8333-444455556667"},
		{"0123456789abcdef0123456789abcdef", "1123456789abcdef0123456789abcdef01"},
		{"took 1.5 seconds", "took 12 ms"},
		{"version 2.1.3", "version 2.10.33"},
		{"write_1795525344125_0", "write_1795525344999_0"},
		{"<env>\ncwd /a\n</env> x", "<env>\ncwd /b and more\n</env> x"},
		{"<system-reminder>a</system-reminder>", "<system-reminder>\nb\n</system-reminder>"},
		{"in /tmp/abc/def.txt", "in /tmp/x"},
	} {
		p := open(t, record(t, nil, [2]string{says(c[0]), "answer"}), nil)
		if got, err := play(t, p, says(c[1])); err != nil || got != "answer" {
			t.Errorf("%q: %v", c, err)
		}
	}
	p := open(t, record(t, nil, [2]string{says("write 5 files"), "answer"}), nil)
	for _, other := range []string{says("write 6 files"), strings.Replace(says("write 5 files"), `"m"`, `"n"`, 1), `{}`, `[]`} {
		if _, err := play(t, p, other); err == nil {
			t.Errorf("%s has another meaning", other)
		}
	}
	if _, err := play(t, p, strings.Replace(says("write 5 files"), "system prompt", "other", 1)); err != nil {
		t.Errorf("the system prompt counts: %v", err)
	}
}

func TestPathsAreThoseOfTheNewSandbox(t *testing.T) {
	file := record(t, Places{"/old": "<session>", "/old/workspace": "<workspace>"}, [2]string{says("write /old/workspace/a and /old/b"), `{"path":"/old/workspace/a"}`})
	if strings.Contains(file, "/old") {
		t.Errorf("the file has the path: %s", file)
	}
	p := open(t, file, Places{"/new": "<workspace>", "/else": "<session>"})
	if got, err := play(t, p, says("write /new/a and /else/b")); err != nil || got != `{"path":"/new/a"}` {
		t.Errorf("%q, %v", got, err)
	}
}

func TestSecretsAreNotWritten(t *testing.T) {
	file := record(t, nil, [2]string{says("my key is " + secret), "your key is " + secret})
	if strings.Contains(file, secret) || strings.Count(file, "[redacted]") != 2 {
		t.Error(file)
	}
}

func TestAnAnswerThatWasNotReadIsNotWritten(t *testing.T) {
	var file bytes.Buffer
	r, err := NewRecorder(&file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	header := file.Len()
	for answer, written := range map[string]bool{"half of it": false, "event: message_stop\ndata: {}\n\n": true} {
		resp, err := r.Send(anthropic, path, r.Form([]byte(says("a"))), post(t), func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(answer + " and what is never read"))}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadFull(resp.Body, make([]byte, len(answer)))
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if (file.Len() > header) != written {
			t.Errorf("%q: the file is %s", answer, file.String())
		}
		header = file.Len()
	}
}

func TestACallThatIsMissingShowsTheNearest(t *testing.T) {
	p := open(t, record(t, nil, [2]string{says("something else"), "1"}, [2]string{says("write five files and go"), "2"}), nil)
	_, err := play(t, p, says("write four files and go"))
	missing, ok := errors.AsType[*NoMatchError](err)
	if !ok || !strings.Contains(missing.Nearest, "five") || !strings.Contains(missing.Got, "four") || !strings.Contains(missing.Call, "anthropic/v1/messages") {
		t.Errorf("%v", err)
	}
	_, err = p.Send(runnerscripts.APIOpenAI, path, p.Form(nil), post(t))
	if missing, ok := errors.AsType[*NoMatchError](err); !ok || missing.Nearest != "" {
		t.Errorf("%v", err)
	}
}

func TestFilesThatAreNoRecordings(t *testing.T) {
	good := record(t, nil, [2]string{says("a"), "1"})
	if _, err := Open(strings.NewReader(good+good), nil); err != nil {
		t.Errorf("a recording that was gone on with: %v", err)
	}
	for text, want := range map[string]string{
		"": "no recording", "hello": "no recording", `{"format":"other","version":1}`: "no recording",
		strings.Replace(good, `"version":1`, `"version":2`, 1):  "has version 2",
		strings.Replace(good, `"pattern":"`, `"pattern":"(`, 1): "mask 1",
		good + "{\n": "line 3", good + "{}\n": "line 3", good[:len(good)-3]: "line 2",
		strings.Replace(good, `"status":200`, `"status":9`, 1): "line 2",
	} {
		if _, err := Open(strings.NewReader(text), nil); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestADiskThatIsFull checks that calls still succeed when the recording fails, and that Err
// reports the failure.
func TestADiskThatIsFull(t *testing.T) {
	full := errors.New("no space")
	r, err := NewRecorder(&limited{room: 10000, err: full}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := r.Send(anthropic, path, r.Form([]byte(says("a"))), post(t), func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(strings.Repeat("x", 20000)))}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(resp.Body); len(data) != 20000 || err != nil {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	if err := r.Err(); !errors.Is(err, full) {
		t.Error(err)
	}
}

type limited struct {
	room int
	err  error
}

func (l *limited) Write(p []byte) (int, error) {
	if l.room -= len(p); l.room < 0 {
		return 0, l.err
	}
	return len(p), nil
}

// FuzzOpen checks that any file is either a valid recording or an error, and that answers come
// from the file.
func FuzzOpen(f *testing.F) {
	f.Add([]byte(record(f, nil, [2]string{says("a"), "1"})), []byte(says("a")))
	f.Fuzz(func(t *testing.T, file, body []byte) {
		p, err := Open(bytes.NewReader(file), Places{"/a": "<a>"})
		if err != nil {
			if !errors.Is(err, ErrFile) {
				t.Errorf("%v", err)
			}
			return
		}
		if form := formOf(body, nil, p.masks); form != formOf(body, nil, p.masks) {
			t.Errorf("the form of %q changes", body)
		}
		if resp, err := p.Send(anthropic, path, p.Form(body), post(t)); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
		} else if missing, ok := errors.AsType[*NoMatchError](err); !ok || missing.Error() == "" {
			t.Errorf("%v", err)
		}
	})
}

func TestOnlyARecordingIsAddedTo(t *testing.T) {
	for text, ok := range map[string]bool{
		"": true, `{"format":"agentenv-replay","version":1}` + "\nmore": true, `{"format":"agentenv-replay","version":1}`: false,
		`{"format":"agentenv-replay","version":2}` + "\n": false, "\n": false, "hello\n": false, "{}\n": false, strings.Repeat("x", 2<<20): false,
	} {
		if err := CheckAppend(strings.NewReader(text)); (err == nil) != ok || err != nil && !errors.Is(err, ErrFile) {
			t.Errorf("%.60q: %v", text, err)
		}
	}
}
