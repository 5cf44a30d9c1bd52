package opencode

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// fakeVariable is an environment variable that makes the test binary a fake server. Its value is
// the behaviour.
const fakeVariable = "AGENTENV_TEST_OPENCODE"

// newFake returns a session whose program is a fake server.
func newFake(t *testing.T, behaviour string) *fixture {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := newSession(t, Driver{})
	f.Session.Agent.Command = []string{exe}
	f.Session.Agent.Env = map[string]string{fakeVariable: behaviour}
	return f
}

const fakeSession = "ses_fake"

// fakeProgram is the fake's main function.
func fakeProgram(behaviour string) {
	if os.Args[1] == "--version" {
		fmt.Println(strings.TrimPrefix(behaviour, "version "))
		return
	}
	switch behaviour {
	case "exits":
		fmt.Fprintln(os.Stderr, "no such thing")
		os.Exit(7)
	case "is silent":
		select {}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println("opencode server listening on http://" + ln.Addr().String())
	f := fake{behaviour: behaviour, events: make(chan string, 100), prompts: make(chan struct{}, 100), aborting: &atomic.Bool{}, last: &atomic.Value{}}
	panic(http.Serve(ln, f.routes())) // only a test sees it
}

type fake struct {
	behaviour string
	events    chan string
	prompts   chan struct{} // receives a value for each prompt
	aborting  *atomic.Bool
	last      *atomic.Value // the info of the last message
}

func (f fake) routes() http.Handler {
	mux := http.NewServeMux()
	for path, reply := range map[string]string{
		"GET /config/providers":       `{"providers":[{"id":"p","models":{"m":{"limit":{"context":1000}}}}]}`,
		"GET /agent":                  `[{"name":"build","mode":"primary"}]`,
		"GET /command":                `[]`,
		"GET /experimental/tool/ids":  `["bash","write"]`,
		"GET /global/health":          `{"version":"1.0.0"}`,
		"GET /config":                 `{}`,
		"GET /mcp":                    `{}`,
		"POST /session":               `{"id":"` + fakeSession + `"}`,
		"POST /permission/{id}/reply": `true`,
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, reply) })
	}
	mux.HandleFunc("GET /event", f.stream)
	mux.HandleFunc("GET /global/event", fake{events: make(chan string)}.stream)
	mux.HandleFunc("POST /session/{id}/prompt_async", f.prompt)
	mux.HandleFunc("POST /session/{id}/abort", f.abort)
	mux.HandleFunc("GET /session/{id}/message", func(w http.ResponseWriter, _ *http.Request) {
		if info := f.last.Load(); info != nil {
			fmt.Fprintf(w, `[{"info":%s,"parts":[]}]`, info)
			return
		}
		fmt.Fprint(w, `[]`)
	})
	return mux
}

// abort ends the running query, if there is one, before it responds.
func (f fake) abort(w http.ResponseWriter, _ *http.Request) {
	if f.behaviour == "aborts slowly" {
		f.aborting.Store(true)
		<-f.prompts
		f.fail("nothing works")
		select {
		case <-f.prompts: // this abort would stop the next prompt, too
		case <-time.After(time.Second / 2):
		}
		f.aborting.Store(false)
	}
	fmt.Fprint(w, `true`)
}

// fail reports that the query has failed.
func (f fake) fail(why string) {
	f.say(`{"type":"session.error","properties":{"sessionID":"` + fakeSession + `","error":{"name":"UnknownError","data":{"message":"` + why + `"}}}}`)
	f.say(`{"type":"session.status","properties":{"sessionID":"` + fakeSession + `","status":{"type":"idle"}}}`)
}

func (f fake) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w).Flush
	fmt.Fprint(w, "data: {\"type\":\"server.connected\",\"properties\":{}}\n\n")
	for {
		_ = flush()
		select {
		case e := <-f.events:
			fmt.Fprint(w, e)
		case <-r.Context().Done():
			return
		}
	}
}

func (f fake) prompt(w http.ResponseWriter, r *http.Request) {
	var body promptBody
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	overtakes := f.aborting.Load()
	f.prompts <- struct{}{}
	switch f.behaviour {
	case "aborts slowly":
		if overtakes {
			fmt.Fprintln(os.Stderr, "it is to be stopped before it begins")
			os.Exit(3)
		}
		info := `{"id":"` + body.MessageID + `","sessionID":"` + fakeSession + `","role":"user"}`
		f.last.Store(info)
		f.say(`{"type":"message.updated","properties":{"info":` + info + `}}`)
		f.say(`{"type":"session.status","properties":{"sessionID":"` + fakeSession + `","status":{"type":"retry","attempt":1}}}`)
	case "logs late":
		if err := f.log(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fallthrough
	case "fails":
		f.say(`{"type":"session.error","properties":{"sessionID":"` + fakeSession + `","error":{"name":"UnknownError","data":{"message":"nothing works"}}}}`)
	case "says nothing more":
		f.say(`{"type":"of.a.newer.version","properties":{}}`)
	case "works without an end":
		f.say(`{"type":"message.updated","properties":{"info":{"id":"` + body.MessageID + `","sessionID":"` + fakeSession + `","role":"user"}}}`)
		f.say(`{"type":"session.status","properties":{"sessionID":"` + fakeSession + `","status":{"type":"retry","attempt":1}}}`)
	case "refuses":
		http.Error(w, `{"name":"BadRequest"}`, http.StatusBadRequest)
		return
	case "ends well without an answer":
		os.Exit(0)
	case "crashes":
		fmt.Fprintln(os.Stderr, strings.Repeat("much noise\n", 3000)+"the real reason")
		os.Exit(3)
	case "floods":
		for range 2000 {
			fmt.Println(strings.Repeat("x", 1000))
			fmt.Fprintln(os.Stderr, strings.Repeat("y", 1000))
		}
		f.say(`not JSON at all`)
		f.say(`{"type":"message.updated","properties":{"info":[]}}`)
		f.say(`{"type":"session.error","properties":{"sessionID":"` + fakeSession + `","error":{"name":"UnknownError","data":{"message":"nothing works"}}}}`)
	}
	w.WriteHeader(http.StatusNoContent)
}

func (f fake) say(event string) { f.events <- "data: " + event + "\n\n" }

// log writes an error of the start, the beginning of the first prompt, and an error of the prompt.
func (f fake) log() error {
	path := filepath.Join(os.Getenv("HOME"), ".local/share/opencode/log/opencode.log")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(`timestamp=x level=ERROR run=x message="failed to load plugin" path=x error="no better"
timestamp=x level=INFO run=x message=loop session.id=` + fakeSession + ` step=0
timestamp=x level=ERROR run=x message="of the query"
`)
	return errors.Join(err, file.Close())
}
