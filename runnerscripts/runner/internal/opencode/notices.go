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

// notices are the problems that a program tells while it starts, in two ways: as
// events, before the session's own can be listened to, and in its log.
type notices struct {
	cancel context.CancelFunc
	done   chan struct{}
	events []string // valid after done
	log    string   // the name of the file
	before int64    // its size before the start
}

// newNotices begins to look for problems. The session's folder must not have been
// used yet: that starts what can go wrong.
func newNotices(ctx context.Context, s *server, session runnerscripts.Session) (*notices, error) {
	ctx, cancel := context.WithCancel(ctx)
	st, err := s.events(ctx, "/global/event")
	if err != nil {
		cancel()
		return nil, err
	}
	n := &notices{
		cancel: cancel, done: make(chan struct{}),
		log: filepath.Join(session.Paths.Home, ".local", "share", programName, "log", programName+".log"),
	}
	if info, err := os.Stat(n.log); err == nil {
		n.before = info.Size()
	}
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

// maxLog is how much of the log is looked at, in bytes.
const maxLog = 1 << 20

// stop returns the problems so far.
func (n *notices) stop() []string {
	n.cancel()
	<-n.done
	list := n.events
	f, err := os.Open(n.log)
	if err != nil {
		return list // there is none, or it is not ours
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, n.before, maxLog))
	if err != nil {
		return list
	}
	for line := range strings.Lines(string(data)) {
		if _, said, ok := strings.Cut(line, " level=ERROR "); ok {
			_, said, _ = strings.Cut(said, "message=")
			list = append(list, strings.TrimSpace(strings.ToValidUTF8(said, "\uFFFD")))
		}
	}
	return list
}
