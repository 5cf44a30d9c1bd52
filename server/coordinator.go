package server

import (
	"net/http"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
	"github.com/agentenv-dev/agentenv/server/coordinator"
)

// coordinatorRoutes adds the operations of the coordinator. Its bodies are those of claude-agent-orchestrator, errors too.
func coordinatorRoutes(t *table, s *Server) {
	c := s.cfg.Coordinator
	if c == nil {
		return
	}
	for _, r := range c.Routes() {
		t.routes = append(t.routes, route{
			method: r.Method, path: coordapi.Prefix + r.Path, summary: "Coordinator: " + r.Summary, query: r.Query, media: r.Media,
			handler: func(w http.ResponseWriter, req *http.Request) {
				ctx, cancel := s.untilDrain(req.Context())
				defer cancel()
				caller := callerOf(ctx)
				c.Serve(r, w, req.WithContext(ctx), coordinator.Caller{Name: caller.Name, Admin: caller.Role == RoleAdmin})
			},
		})
	}
}

// coordinates reports whether a path is below that of the coordinator.
func (s *Server) coordinates(path string) bool {
	return s.cfg.Coordinator != nil && strings.HasPrefix(path, coordapi.Prefix+"/")
}
