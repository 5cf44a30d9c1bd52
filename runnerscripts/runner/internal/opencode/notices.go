package opencode

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// notices are the problems that the program reports as events while it starts, before the
// session's own events are available.
type notices struct {
	cancel context.CancelFunc
	done   chan struct{}
	events []string // valid after done
}

// newNotices subscribes to the problems. It must be called before the first use of the
// session's folder, which starts the plugins and servers that may fail.
func newNotices(ctx context.Context, s *server) (*notices, error) {
	ctx, cancel := context.WithCancel(ctx)
	st, err := s.events(ctx, "/global/event")
	if err != nil {
		cancel()
		return nil, err
	}
	n := &notices{cancel: cancel, done: make(chan struct{})}
	go n.listen(st)
	return n, nil
}

func (n *notices) listen(st *stream) {
	defer close(n.done)
	defer st.body.Close()
	for {
		line, err := st.next()
		if err != nil {
			return
		}
		var e struct {
			Payload event `json:"payload"`
		}
		if json.Unmarshal(line, &e) != nil || e.Payload.Type != "session.error" {
			continue
		}
		var problem sessionError
		if json.Unmarshal(e.Payload.Properties, &problem) == nil && problem.SessionID == "" && problem.Error != nil {
			n.events = append(n.events, problem.Error.Data.Message)
		}
	}
}

// stop ends the subscription and returns the problems.
func (n *notices) stop() []string {
	n.cancel()
	<-n.done
	return n.events
}

// startLog reads the program's log from the start of the program to its first prompt. The program
// flushes the log once a second, so problems of the start may appear only later.
type startLog struct {
	path string
	read int64 // the offset of the first unread byte
	over bool  // the first prompt was found in the log
}

func newStartLog(session runnerscripts.Session) startLog {
	l := startLog{path: filepath.Join(session.Paths.Home, ".local", "share", programName, "log", programName+".log")}
	if info, err := os.Stat(l.path); err == nil {
		l.read = info.Size()
	}
	return l
}

// maxLog is how many bytes of the log are read at a time.
const maxLog = 1 << 20

// problems returns the new problems in the log.
func (l *startLog) problems() (list []string) {
	if l.over {
		return nil
	}
	f, err := os.Open(l.path)
	if err != nil {
		return nil // there is no log that the driver can read
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, l.read, maxLog))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(data)) {
		if !strings.HasSuffix(line, "\n") {
			break // the rest of the line is not written yet
		}
		l.read += int64(len(line))
		if strings.Contains(line, " message=loop ") {
			l.over = true
			break
		}
		if _, said, ok := strings.Cut(line, " level=ERROR "); ok {
			_, said, _ = strings.Cut(said, "message=")
			list = append(list, strings.TrimSpace(strings.ToValidUTF8(said, "\uFFFD")))
		}
	}
	return list
}
