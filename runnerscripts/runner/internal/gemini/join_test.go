package gemini

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// TestASessionThatBeginsAtTheEndOfAMinuteKeepsItsToolCalls uses the two files that the program
// creates in this case. The program records tool calls in the second one.
func TestASessionThatBeginsAtTheEndOfAMinuteKeepsItsToolCalls(t *testing.T) {
	t.Parallel()
	s, id := agenttest.NewSession(t, agent.NewUUID(), programName), agent.NewUUID()
	header := `{"sessionId":"` + id + `","kind":"main"}` + "\n"
	files := map[string]string{
		"10-59": `{"id":"1","type":"user","content":[{"text":"hello"}]}` + "\n" + `{"id":"2","type":"gemini","content":"I use a tool."}` + "\n",
		"11-00": `{"id":"3","type":"gemini","content":"","toolCalls":[{"id":"call-1","name":"write_file","status":"success"}]}` + "\n",
	}
	name := func(minute string) string {
		return filepath.Join(chatsDir(s), sessionPrefix+"2026-11-23T"+minute+"-"+id[:8]+fileSuffix)
	}
	for minute := range files {
		agenttest.WriteFile(t, name(minute), header)
	}
	l := &live{session: s, workspace: s.Paths.Workspace, out: agenttest.NewRecorder()}
	if err := l.began(id, "", ""); err != nil {
		t.Fatal(err)
	}
	for _, minute := range []string{"10-59", "11-00"} {
		f, err := os.OpenFile(name(minute), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(files[minute]); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if news, err := l.news(); err != nil || !strings.Contains(news, "hello") || !strings.Contains(news, "call-1") {
		t.Errorf("news: %q, %v", news, err)
	}
	stored, err := Driver{}.Transcript(t.Context(), runnerscripts.TranscriptRequest{Session: s}, nil)
	if err != nil || !strings.Contains(stored.Main, "hello") || !strings.Contains(stored.Main, "call-1") {
		t.Errorf("transcript: %q, %v", stored.Main, err)
	}
	if h, err := l.history(); err != nil || h.SessionID != id {
		t.Errorf("history: %+v, %v", h, err)
	}
	entries, err := os.ReadDir(chatsDir(s))
	if err != nil || len(entries) != 1 {
		t.Errorf("files of the next start: %v, %v", entries, err)
	}
}

func TestRestoringATranscriptRemovesJoinedFiles(t *testing.T) {
	t.Parallel()
	s, id := agenttest.NewSession(t, agent.NewUUID(), programName), agent.NewUUID()
	header := `{"sessionId":"` + id + `","kind":"main"}` + "\n"
	for _, minute := range []string{"10-59", "11-00"} {
		agenttest.WriteFile(t, filepath.Join(chatsDir(s), sessionPrefix+"2026-11-23T"+minute+"-"+id[:8]+fileSuffix), header)
	}
	if err := joinFiles(s, id); err != nil {
		t.Fatal(err)
	}
	main := header + `{"id":"1","type":"user","content":[{"text":"hello"}]}` + "\n"
	if err := restore(s, runnerscripts.Transcript{Main: main}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(chatsDir(s))
	if err != nil || len(entries) != 1 || filepath.Join(chatsDir(s), entries[0].Name()) != keptFile(s, id) {
		t.Errorf("files after the transcript was restored: %v, %v", entries, err)
	}
}
