package testmodal

// Isolated says that sandboxes have namespaces and a root of their own.
func Isolated() bool { return isolated() }

// Dir is where the server keeps everything.
func (s *Server) Dir() string { return s.dir }

// Leftovers returns an error that names what the tests leak so far, besides goroutines.
func Leftovers() error { return leftBehind() }

// Task is a sandbox as the router knows it.
type Task struct {
	Task  string
	Token func() string // a fresh one
}

// TaskOf finds the task of a sandbox.
func (s *Server) TaskOf(id string) Task {
	sb, err := s.sandbox(id)
	if err != nil {
		return Task{}
	}
	return Task{sb.task, sb.token}
}
