package llmapi

import (
	"net/http"
	"slices"
)

// Request is a request to a model that the server received, for assertions.
type Request struct {
	Path     string
	Header   http.Header
	Body     []byte
	Model    string
	Scenario string   // the word of the scenario that answered it
	Texts    []string // of the user, oldest first
	Results  []string // of the tools called since the last text
	Tools    []string // names of the offered tools
	Status   int      // of the answer
	Usage    Usage    // of the answer; zero for a failure
}

// Usage is the usage that a reply reports.
type Usage struct {
	InputTokens      int64 `json:"input_tokens"`
	CacheWriteTokens int64 `json:"cache_creation_input_tokens"`
	CacheReadTokens  int64 `json:"cache_read_input_tokens"`
	OutputTokens     int64 `json:"output_tokens"`
}

// maxRequests is the maximum number of recorded requests.
const maxRequests = 256

// Requests returns the requests to a model, oldest first, at most the last maxRequests.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

func (s *Server) record(r Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == maxRequests {
		s.requests = slices.Delete(s.requests, 0, 1)
	}
	s.requests = append(s.requests, r)
}
