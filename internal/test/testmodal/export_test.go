package testmodal

// Isolated reports whether sandboxes have their own namespaces and root file system.
func Isolated() bool { return isolated() }

// Dir returns the server's directory.
func (s *Server) Dir() string { return s.dir }

// Leftovers returns an error that names what the tests have leaked, other than goroutines.
func Leftovers() error { return leftBehind() }

// Task identifies a sandbox for the router.
type Task struct {
	Task  string
	Token func() string // returns a new token
}

// TaskOf returns the task of a sandbox.
func (s *Server) TaskOf(id string) Task {
	sb, err := s.sandbox(id)
	if err != nil {
		return Task{}
	}
	return Task{sb.task, sb.token}
}
