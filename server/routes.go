package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/session"
)

// routes returns all operations.
func (s *Server) routes() ([]route, error) {
	t := &table{s: s}
	const one = "/sessions/{id}"
	add(t, "GET", "/sessions", "List sessions, the latest first", s.list, "agent", "status", "parent", "since", "limit", "metadata")
	add(t, "POST", "/sessions", "Create a session", s.create)
	add(t, "POST", "/team/load", "Say what creating a session would do or refuse, without creating it", s.load)
	add(t, "POST", "/session/create", "Create a session, as POST /sessions does", s.create)
	streamOf(t, "POST", "/session/run", "Send a prompt, and follow the events of its query up to the end", eventStream, s.run)
	add(t, "GET", one, "The state of a session, which need not be open", s.state)
	add(t, "DELETE", one, "End the sandbox and remove the session", s.destroy)
	add(t, "POST", one+"/open", "Open a session, so that its events go on", s.open)
	add(t, "POST", one+"/unload", "Close a session, which stays stored", s.unload)
	add(t, "POST", one+"/prompts", "Send a prompt to the agent", s.prompt)
	add(t, "POST", one+"/prompts/{query}/interrupt", "Stop one query, or withdraw its prompt", s.interruptOne)
	add(t, "POST", one+"/interrupt", "Stop the running query", s.interrupt)
	add(t, "POST", one+"/permissions/{request}", "Answer a permission request", s.respond)
	add(t, "PATCH", one+"/options", "Change the model or the permission mode", s.setOptions)
	add(t, "GET", one+"/tools", "The tools that the agent offers to its model", s.tools)
	add(t, "GET", one+"/models", "The models that the options accept", s.models)
	add(t, "GET", one+"/transcript", "The agent's own history of the conversation", s.transcript)
	add(t, "DELETE", one+"/environment", "End the sandbox; the next prompt makes a new one", s.terminate)
	add(t, "GET", one+"/files", "List the files of the workspace", s.files, "ignore", "max_content")
	add(t, "POST", one+"/checkpoints", "Take a checkpoint now", s.sync)
	add(t, "GET", one+"/changes", "What has changed from one checkpoint to another", s.changes, "from", "to")
	add(t, "POST", one+"/rewind", "Return to a checkpoint", s.rewind)
	add(t, "POST", one+"/fork", "Create sessions with this conversation and workspace", s.fork)
	t.stream("GET", one+"/events", "Follow the events, from the one after Last-Event-ID or from ?from", eventStream, s.events, "from")
	t.stream("GET", one+"/file", "Read a file of the sandbox", "application/octet-stream", s.readFile, "path")
	t.stream("PUT", one+"/file", "Write a file of the sandbox", "", s.writeFile, "path", "mode", "append", "exclusive", "if_revision")
	t.stream("GET", one+"/workspace", "The files of a checkpoint as a tar archive; with from, those that have changed since", tarMedia, s.readWorkspace, "from", "to")
	t.stream("PUT", one+"/workspace", "Begin with the files of a tar archive, before the first prompt", "", s.writeWorkspace)
	t.stream("GET", one+"/patch", "The changes from one checkpoint to another, for git apply", "text/x-patch", s.patch, "from", "to")
	add(t, "GET", "/permissions", "List the stored answers to permission requests, those of all callers for an admin", s.storedAnswers)
	add(t, "DELETE", "/permissions/{id}", "Remove a stored answer, so that the agent asks again", s.removeAnswer)
	acpRoutes(t, s)
	coordinatorRoutes(t, s)
	if s.cfg.Sandboxes {
		sandboxRoutes(t, s)
	}
	if t.err != nil {
		return nil, t.err
	}
	description := describe(t.routes)
	t.stream("GET", "/openapi.json", "This description", "application/json", func(w http.ResponseWriter, _ *call) error {
		s.answer(w, http.StatusOK, description)
		return nil
	})
	return t.routes, nil
}

// route is one operation.
type route struct {
	method, path string
	summary      string
	query        []string
	body, reply  *jsonschema.Schema // nil for none
	media        string             // the media type of a reply that is no JSON; empty for none
	handler      http.HandlerFunc
}

// table collects routes.
type table struct {
	s      *Server
	routes []route
	err    error
}

// eventStream is the media type of server-sent events.
const eventStream = "text/event-stream"

// tarMedia is the media type of tar archives.
const tarMedia = "application/x-tar"

// none is a body, or a reply, without content.
type none struct{}

func isNone[T any]() bool {
	_, is := any(*new(T)).(none)
	return is
}

// call is what an operation gets besides its body.
type call struct {
	*http.Request
	query   *query
	body    []byte // of the request, if the operation streams
	release func() // of the session; nil if none is in use
}

// end releases the session.
func (c *call) end() {
	if c.release != nil {
		c.release()
	}
}

// add adds an operation that takes and returns JSON. query has the keys that its address may have.
func add[In, Out any](t *table, method, path, summary string, do func(*call, In) (Out, error), query ...string) {
	s := t.s
	in, err := newBody[In]()
	out, oerr := jsonschema.For[Out](schemas())
	if err = errors.Join(err, oerr); err != nil {
		t.err = errors.Join(t.err, fmt.Errorf("%s %s: %w", method, path, err))
		return
	}
	r := route{method: method, path: sessionapi.Prefix + path, summary: summary, query: query, body: in.resolved.Schema(), reply: out}
	if isNone[In]() {
		r.body = nil
	}
	if isNone[Out]() {
		r.reply = nil
	}
	r.handler = func(w http.ResponseWriter, req *http.Request) {
		data, err := readBody(req)
		if err != nil {
			s.fail(w, req, err)
			return
		}
		answer := func(w http.ResponseWriter, req *http.Request) {
			c := &call{Request: req, query: newQuery(req, query)}
			defer c.end()
			v, err := in.decode(data)
			if err = errors.Join(c.query.err, err); err == nil {
				var reply Out
				if reply, err = do(c, v); err == nil {
					s.reply(w, r, reply)
					return
				}
			}
			s.fail(w, req, err)
		}
		if method == http.MethodGet {
			answer(w, req)
		} else if err := s.once.serve(w, req, data, answer); err != nil {
			s.fail(w, req, err)
		}
	}
	t.routes = append(t.routes, r)
}

// reply answers with what an operation has returned.
func (s *Server) reply(w http.ResponseWriter, r route, v any) {
	if r.reply == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	s.answer(w, http.StatusOK, v)
}

func (s *Server) answer(w http.ResponseWriter, status int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		s.log.Error("an answer cannot be written", "error", err)
		status, data = http.StatusInternalServerError, []byte(`{"error":{"code":"internal","message":"the answer cannot be written"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // the client may have gone
}

// stream adds an operation that answers by itself. Its error is the answer if it comes before anything else is written.
func (t *table) stream(method, path, summary, media string, do func(http.ResponseWriter, *call) error, query ...string) {
	s := t.s
	r := route{method: method, path: sessionapi.Prefix + path, summary: summary, query: query, media: media}
	r.handler = func(w http.ResponseWriter, req *http.Request) {
		c := &call{Request: req, query: newQuery(req, query)}
		defer c.end()
		err := c.query.err
		if err == nil {
			err = do(w, c)
		}
		if err != nil {
			s.fail(w, req, err)
		}
	}
	t.routes = append(t.routes, r)
}

// streamOf is stream for an operation that takes JSON.
func streamOf[In any](t *table, method, path, summary, media string, do func(http.ResponseWriter, *call, In) error) {
	in, err := newBody[In]()
	if err != nil {
		t.err = errors.Join(t.err, fmt.Errorf("%s %s: %w", method, path, err))
		return
	}
	t.stream(method, path, summary, media, func(w http.ResponseWriter, c *call) (err error) {
		if c.body, err = readBody(c.Request); err != nil {
			return err
		}
		v, err := in.decode(c.body)
		if err != nil {
			return err
		}
		return do(w, c, v)
	})
	t.routes[len(t.routes)-1].body = in.resolved.Schema()
}

// session returns the session that the path names, until the end of the call. It opens the session if it is not open.
func (s *Server) session(c *call) (open *session.AgentSession, err error) {
	open, c.release, err = s.cfg.Host.Use(c.Context(), c.PathValue("id"))
	err = s.moving(err)
	return open, err
}

// opened returns the session that the path names if it is open, else nil.
func (s *Server) opened(c *call) *session.AgentSession { return s.cfg.Host.Opened(c.PathValue("id")) }

// parameters matches the parameters of a path.
var parameters = regexp.MustCompile(`\{([a-z]+)\}`)
