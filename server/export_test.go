package server

import "time"

// SetHeartbeat shortens the time between heartbeats.
func (s *Server) SetHeartbeat(d time.Duration) { s.heartbeat = d }

// SetRate changes how many requests callers may make: burst at once, and hardly any after that.
func (s *Server) SetRate(burst int) { s.rates.most, s.rates.burst = 1e-6, burst }

// SetConnect shortens the time in which a client may connect to a new sandbox.
func (s *Server) SetConnect(d time.Duration) { s.boxes.connect = d }
