package acpserver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Stream carries the messages of one connection.
type Stream interface {
	// Read returns the next message, and io.EOF at the end. One goroutine calls it.
	Read() ([]byte, error)
	// Write sends one message, which ends with a line break. Its calls do not overlap.
	Write(message []byte) error
}

// maxMessage is the longest message of a client, in bytes: files may be embedded.
const maxMessage = 64 << 20

// Lines returns the stream of an editor that starts this program: each message is a line.
func Lines(in io.Reader, out io.Writer) Stream {
	return &lines{runnerscripts.NewLineReader(in, maxMessage), out}
}

type lines struct {
	in  *runnerscripts.LineReader
	out io.Writer
}

func (l *lines) Read() ([]byte, error) {
	line, err := l.in.Next()
	return bytes.Clone(line), err
}

func (l *lines) Write(message []byte) error {
	_, err := l.out.Write(message)
	return err
}

// sender sends one message a call. If that fails, it ends the connection.
type sender struct {
	broken context.CancelCauseFunc

	mu     sync.Mutex
	stream Stream
}

func (s *sender) Write(message []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.stream.Write(message); err != nil {
		err = fmt.Errorf("write to the client: %w", err)
		s.broken(err)
		return 0, err
	}
	return len(message), nil
}
