package gateway

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestToolsAreOfOneSession has two sessions: the token of one is worth nothing at the other's gateway, and no tool
// sees a token.
func TestToolsAreOfOneSession(t *testing.T) {
	tools := func(name string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			for key := range r.Header {
				if key == "Authorization" || key == "X-Api-Key" {
					t.Errorf("%s sees %s", name, key)
				}
			}
			_, _ = io.WriteString(w, name+" "+r.URL.String()+" "+string(body))
		})
	}
	_, one := serveConfig(t, Config{Tools: tools("one")})
	_, two := serveConfig(t, Config{Tools: tools("two")})
	for _, c := range []struct {
		url, token string
		status     int
		want       string
	}{
		{one.URL + ToolsPath, one.Token, 200, "one /mcp hi"},
		{two.URL + ToolsPath, two.Token, 200, "two /mcp hi"},
		{one.URL + ToolsPath, two.Token, 403, "that of another session"},
		{two.URL + ToolsPath, "", 401, "no valid token of this session"},
		{one.URL + ToolsPath + "/x", one.Token, 404, "no such upstream"},
		{one.URL + "/%6dcp", one.Token, 404, "no such upstream"},
	} {
		status, body := ask(t, request(t, "POST", c.url, "hi", "Authorization", "Bearer "+c.token))
		if status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s", c.url, status, body)
		}
	}
	if status, _ := ask(t, request(t, "POST", one.URL+ToolsPath+"?key="+one.Token, "hi")); status != 200 {
		t.Errorf("the token in the query: %d", status)
	}
}

func TestWithoutToolsThereAreNone(t *testing.T) {
	_, at := serveConfig(t, Config{AllowHosts: []string{}})
	if status, _ := ask(t, request(t, "POST", at.URL+ToolsPath, "{}", "Authorization", "Bearer "+at.Token)); status != 404 {
		t.Errorf("%d", status)
	}
	_, err := New(Config{Tools: http.NotFoundHandler(), Upstreams: map[string]Upstream{"mcp": {API: "openai", Key: realKey}}})
	if !errors.Is(err, ErrConfig) {
		t.Errorf("an upstream in its place: %v", err)
	}
}

// TestCloseEndsTools checks that Close waits for a tool that runs, whose context it cancels.
func TestCloseEndsTools(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	g, err := New(Config{Tools: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		close(ended)
	})})
	if err != nil {
		t.Fatal(err)
	}
	at := serve(t, g)
	go func() {
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request(t, "POST", at.URL+ToolsPath, "{}", "Authorization", "Bearer "+at.Token))
		if err == nil {
			resp.Body.Close()
		}
	}()
	<-began
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-ended:
	default:
		t.Error("the tool runs on")
	}
}
