package examples_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// chat is a running server of the chat example.
type chat struct {
	t   *testing.T
	url string
}

// post returns the status and the answer of a request.
func (c chat) post(path, body string) (int, string) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return res.StatusCode, strings.TrimSpace(string(text))
}

// events returns the events after the number last, up to the first event of the type until.
func (c chat) events(id string, last uint64, until runnerscripts.EventType) []runnerscripts.Event {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.url+"/chats/"+id, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Last-Event-ID", fmt.Sprint(last))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	var all []runnerscripts.Event
	for lines := bufio.NewReader(res.Body); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			c.t.Fatalf("the stream ends before %s: %v", until, err)
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var ev runnerscripts.Event
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			c.t.Fatal(err)
		}
		if last++; ev.Seq != last {
			c.t.Fatalf("event %d follows %d", ev.Seq, last-1)
		}
		if all = append(all, ev); ev.Type == until {
			return all
		}
	}
}

func TestChatServesAConversation(t *testing.T) {
	cmd := example(t, "chat")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	c := chat{t, strings.TrimSpace(url)}
	status, id := c.post("/chats", "")
	if status != http.StatusCreated {
		t.Fatalf("status %d: %s", status, id)
	}
	if status, text := c.post("/chats/"+id, "do what needs permission"); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, text)
	}
	seen := c.events(id, 0, runnerscripts.TypePermissionRequest)
	last := seen[len(seen)-1]
	var req runnerscripts.PermissionRequest
	if err := json.Unmarshal(last.Payload, &req); err != nil {
		t.Fatal(err)
	}
	answers := "/chats/" + id + "/permissions/" + req.ID
	if status, text := c.post(answers, `{"kind": "perhaps"}`); status != http.StatusBadRequest || !strings.Contains(text, "perhaps") {
		t.Errorf("an answer that makes no sense: status %d: %s", status, text)
	}
	if status, text := c.post(answers, `{}`); status != http.StatusBadRequest || !strings.Contains(text, "option_id") {
		t.Errorf("an empty answer: status %d: %s", status, text)
	}
	if status, text := c.post(answers, `{"kind": "allow_once"}`); status != http.StatusOK {
		t.Errorf("status %d: %s", status, text)
	}
	if status, _ := c.post(answers, `{"kind": "allow_once"}`); status != http.StatusConflict {
		t.Errorf("a second answer: status %d", status)
	}
	// Like a browser that reconnects.
	rest := c.events(id, last.Seq, runnerscripts.TypeQueryCompleted)
	var said strings.Builder
	for _, ev := range rest {
		said.WriteString(ev.Text())
	}
	if !strings.Contains(said.String(), "That was all.") {
		t.Errorf("it said %q", said.String())
	}
	if status, _ := c.post("/chats/none", "hello"); status != http.StatusNotFound {
		t.Errorf("an unknown conversation: status %d", status)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	for _, ev := range seen {
		if ev.Type == runnerscripts.TypeEnvironmentReady {
			var info runnerscripts.EnvironmentInfo
			if err := json.Unmarshal(ev.Payload, &info); err != nil || info.ID == "" {
				t.Fatalf("%s: %v", ev.Payload, err)
			}
			if left, _ := filepath.Glob(filepath.Join(cacheDir(t), "agentenv", "local", info.ID)); len(left) > 0 {
				t.Errorf("left after the end: %s", left)
			}
		}
	}
}

func cacheDir(t *testing.T) string {
	t.Helper()
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
