package environment

import (
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
)

// TestAnAPIThatFailsLeavesTheSessionUsable checks that the query reports the error, and that the
// next query works.
func TestAnAPIThatFailsLeavesTheSessionUsable(t *testing.T) {
	t.Parallel()
	target, err := url.Parse(keyedModel(t))
	if err != nil {
		t.Fatal(err)
	}
	var fails atomic.Pointer[http.HandlerFunc]
	works := httputil.NewSingleHostReverseProxy(target)
	server := keyed(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := fails.Load(); f != nil {
			(*f)(w, r)
			return
		}
		works.ServeHTTP(w, r)
	}))
	c := otherAgents()[1] // an executor, which does not retry
	env := create(t, c.local(t, server))
	raw := func(answer string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn, answer)
			_ = conn.Close()
		}
	}
	for name, bad := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"no answer":     {raw(""), "cannot reach the API"},
		"no HTTP":       {raw("garbage\r\n\r\n"), "cannot reach the API"},
		"no JSON":       {raw("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ngarbage"), "JSON"},
		"a cut answer":  {raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"), "terminated"},
		"a wrong state": {raw("HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\nbad!"), "the model answers 500: bad!"},
	} {
		fails.Store(&bad.answer)
		_, err := env.Run(t.Context(), "please write-file `notes.txt`")
		if _, ok := errors.AsType[*QueryError](err); !ok || !strings.Contains(err.Error(), bad.want) || strings.Contains(err.Error(), hostKey) {
			t.Errorf("%s: %v", name, err)
		}
		fails.Store(nil)
		if res, err := env.Run(t.Context(), "please write-file `notes.txt`"); err != nil || !strings.Contains(res.Text, "The file is written.") {
			t.Errorf("after %s: %+v, %v", name, res, err)
		}
	}
}
