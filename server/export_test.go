package server

import "time"

// SetHeartbeat shortens the time between heartbeats.
func (s *Server) SetHeartbeat(d time.Duration) { s.heartbeat = d }
