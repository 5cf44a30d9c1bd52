package term

import (
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/internal/visible"
)

// EraseLine goes back to the start of a line and clears it.
const EraseLine = "\r\x1b[K"

const (
	statusDelay = 2 * time.Second // shorter activities show no status
	statusStep  = time.Second
)

// Status is the last line of a terminal. It shows the current activity and its duration, on
// standard error. Other output to the terminal first erases the status, which is drawn again
// below, only at the start of a line. Its methods may be called from several goroutines.
type Status struct {
	err *Output

	mu     sync.Mutex // also held while other text is written to the terminal
	On     bool
	what   string // empty if there is no activity
	since  time.Time
	timer  *time.Timer // draws the line again
	drawn  bool
	inLine bool   // the last output does not end a line
	hidden bool   // the user answers a question
	pinned bool   // what was set by Busy
	before func() // called before the line is drawn
}

// NewStatus returns the status of a terminal. It shows nothing if standard error is no terminal,
// or a terminal that cannot erase a line.
func NewStatus(err *Output) *Status {
	return &Status{err: err, On: err.Terminal && os.Getenv("TERM") != "dumb"}
}

// Busy shows what a command does until done is called. Calls of Set have no effect until then.
func (s *Status) Busy(what string) (done func()) {
	s.change(what, time.Now(), true)
	return func() { s.change("", time.Time{}, true) }
}

// Set shows the activity what, which started at since. An empty text clears the status.
func (s *Status) Set(what string, since time.Time) { s.change(what, since, false) }

func (s *Status) change(what string, since time.Time, pinned bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.On || s.pinned && !pinned {
		return
	}
	s.erase()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.pinned = pinned && what != ""
	if s.what, s.since = what, since; what != "" {
		s.timer = time.AfterFunc(max(statusDelay-time.Since(since), statusStep), s.tick)
	}
}

// Off disables the status for good.
func (s *Status) Off() {
	s.change("", time.Time{}, true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.On = false
}

// Hide hides the status while the user answers a question.
func (s *Status) Hide(hidden bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	s.hidden, s.inLine = hidden, false // the end of the answer ends the line
}

// BeforeDrawing sets a function that is called each time before the line is drawn.
func (s *Status) BeforeDrawing(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
}

// tick draws the line, and again after statusStep.
func (s *Status) tick() {
	s.mu.Lock()
	before, late := s.before, s.what != "" && time.Since(s.since) >= statusDelay
	s.mu.Unlock()
	if before != nil && late {
		before() // may write
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.On || s.what == "" {
		return // the activity has ended meanwhile
	}
	s.timer.Reset(statusStep)
	elapsed := time.Since(s.since)
	if s.hidden || s.inLine || elapsed < statusDelay {
		return
	}
	s.erase()
	after := " " + elapsed.Truncate(time.Second).String()
	text := Dim(clip(visible.Line(s.what), s.err.Width()-1-len(after)) + after)
	s.drawn = true
	_, _ = io.WriteString(s.err.File, s.err.styled(text)) // other writes report the error, too
}

// erase removes the line. The caller holds mu.
func (s *Status) erase() {
	if s.drawn {
		s.drawn = false
		_, _ = io.WriteString(s.err.File, EraseLine)
	}
}

// write writes other text. Text in a pipe may reach the same terminal, so write erases the
// status first; it does not hold mu while it writes, because the reader may be slow. Text in a
// file does not reach the terminal.
func (s *Status) write(to io.Writer, text []byte) (int, error) {
	mode := modeOf(to)
	if mode.IsRegular() {
		return to.Write(text)
	}
	s.mu.Lock()
	s.erase()
	s.inLine = len(text) > 0 && text[len(text)-1] != '\n'
	if mode&fs.ModeNamedPipe == 0 {
		defer s.mu.Unlock()
		return to.Write(text)
	}
	s.mu.Unlock()
	return to.Write(text)
}

// modeOf returns the type of the file that is written to. It returns a regular file for the null
// device.
func modeOf(to io.Writer) fs.FileMode {
	f, ok := to.(*os.File)
	if !ok {
		return fs.ModeNamedPipe
	}
	info, err := f.Stat()
	if err != nil {
		return fs.ModeNamedPipe
	}
	if null, err := os.Stat(os.DevNull); err == nil && os.SameFile(info, null) {
		return 0
	}
	return info.Mode().Type()
}
