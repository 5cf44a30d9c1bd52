package coordinator_test

import "testing"

// A key that an operation does not have is refused, so that nobody takes all for those that a filter selects.
func TestAQueryHasKnownKeys(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		s.fails("a key of none", "GET", "/sessions?foo=1", "", 400, `"the query: foo: there is no such key; leave it out"`)
		s.fails("a key of another one", "GET", "/runs?limit=1", "", 400, "the query: limit: there is no such key; there are: session_id")
		s.fails("a query that is none", "GET", "/runs?session_id=%zz", "", 400, "the query: ")
		s.fails("a key of a change", "POST", "/runs?prompt=x", `{"type":"start_session","prompt":"x"}`, 400, "the query: prompt")
		// Clients and runners of claude-agent-orchestrator.
		for _, path := range []string{"/agents?tags=external", "/runs?session_id=ses_none"} {
			s.must("GET", path, "", nil)
		}
		f := s.follow("/sse/sessions?api_key=x&include_init=true", "")
		defer f.stop()
		f.next()
		id := s.register(coding)
		s.poll(id)
		s.must("DELETE", "/runners/"+id+"?self=true", "", nil)
	})
}
