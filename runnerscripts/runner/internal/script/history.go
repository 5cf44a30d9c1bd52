package script

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// past is the history that the agent remembers.
type past struct {
	text    string // the history byte by byte
	events  []runnerscripts.Event
	prompts []string
	usage   runnerscripts.Usage
}

func historyFile(s runnerscripts.Session) string {
	return filepath.Join(s.Paths.Home, ".agentenv-script", s.SessionID+".jsonl")
}

// readHistory reads a history; a missing one is empty. It skips invalid lines, such as a line
// that a crash has truncated.
func readHistory(name string) (past, error) {
	var p past
	raw, err := os.ReadFile(name)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return p, nil
		}
		return p, fmt.Errorf("reading the script agent's history: %w", err)
	}
	return parseHistory(string(raw))
}

func parseHistory(text string) (past, error) {
	p := past{text: text}
	lines := runnerscripts.NewLineReader(strings.NewReader(p.text), 0)
	for {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return p, nil
		}
		if err != nil {
			return p, fmt.Errorf("reading the script agent's history: %w", err)
		}
		ev, err := runnerscripts.DecodeEvent(bytes.Clone(line))
		if err != nil {
			continue
		}
		p.events = append(p.events, ev)
		switch ev.Type {
		case runnerscripts.TypeQueryStarted:
			if q, err := runnerscripts.Payload[runnerscripts.QueryStarted](ev); err == nil {
				p.prompts = append(p.prompts, q.Prompt)
			}
		case runnerscripts.TypeQueryCompleted:
			if q, err := runnerscripts.Payload[runnerscripts.QueryCompleted](ev); err == nil {
				p.usage = p.usage.Add(q.Usage)
			}
		}
	}
}

// restore replaces the history atomically.
func restore(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return fmt.Errorf("restoring the script agent's history: %w", err)
	}
	tmp := name + ".new"
	err := os.WriteFile(tmp, []byte(text), 0o600)
	if err == nil {
		err = os.Rename(tmp, name)
	}
	if err != nil {
		return fmt.Errorf("restoring the script agent's history: %w", err)
	}
	return nil
}

// history appends to the history file; each event is one write.
type history struct {
	file *os.File
	enc  *runnerscripts.Encoder
}

func openHistory(name string) (*history, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, fmt.Errorf("opening the script agent's history: %w", err)
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the script agent's history: %w", err)
	}
	if err := endLastLine(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("opening the script agent's history: %w", err)
	}
	return &history{file: f, enc: runnerscripts.NewEncoder(f)}, nil
}

// endLastLine terminates a last line that a crash has truncated.
func endLastLine(f *os.File) error {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, info.Size()-1); err != nil {
		return err
	}
	if last[0] == '\n' {
		return nil
	}
	_, err = f.WriteString("\n")
	return err
}

func (h *history) append(line runnerscripts.Event) error {
	if err := h.enc.Encode(line); err != nil {
		return fmt.Errorf("writing the script agent's history: %w", err)
	}
	return nil
}
