package codex

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// The program stores a thread in its folder as
//
//	sessions/<year>/<month>/<day>/rollout-<time>-<thread>.jsonl
//
// It also has database indexes of all threads, which it rebuilds from the rollouts. The driver
// stores the ID of a session's thread in the file agentenv/<session> of the same folder.

func threadFile(s runnerscripts.Session) string {
	return filepath.Join(configDir(s), "agentenv", s.SessionID)
}

func storeThread(s runnerscripts.Session, thread string) error {
	return agent.RestoreFile(threadFile(s), thread+"\n")
}

// storedThread returns the session's thread and whether it can be resumed: a thread without a
// prompt has no rollout yet.
func storedThread(s runnerscripts.Session) (thread string, resume bool, err error) {
	text, err := agent.ReadIfExists(threadFile(s))
	thread = strings.TrimSpace(text)
	if err != nil || !agent.IsUUID(thread) {
		return "", false, err
	}
	file, err := findRollout(s, thread)
	if err != nil || file == "" {
		return thread, false, err
	}
	resume, err = repairRollout(file)
	return thread, resume, err
}

// findRollout returns the path of a thread's rollout, or "" if there is none.
func findRollout(s runnerscripts.Session, thread string) (string, error) {
	all, err := rollouts(s)
	if err != nil {
		return "", err
	}
	for _, file := range slices.Backward(all) {
		if threadOf(file) == thread {
			return file, nil
		}
	}
	return "", nil
}

// rollouts returns the paths of all rollouts, oldest first.
func rollouts(s runnerscripts.Session) ([]string, error) {
	var list []string
	root := filepath.Join(configDir(s), "sessions")
	err := filepath.WalkDir(root, func(file string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case e.Type().IsRegular() && threadOf(file) != "":
			list = append(list, file)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for transcripts: %w", err)
	}
	return list, nil
}

const (
	rolloutPrefix = "rollout-"
	rolloutSuffix = ".jsonl"
	uuidLen       = 36
)

// threadOf returns the thread ID in the name of a rollout, or "" for other files.
func threadOf(file string) string {
	name, isRollout := strings.CutPrefix(filepath.Base(file), rolloutPrefix)
	name, isJSONL := strings.CutSuffix(name, rolloutSuffix)
	if !isRollout || !isJSONL || len(name) < uuidLen || !agent.IsUUID(name[len(name)-uuidLen:]) {
		return ""
	}
	return name[len(name)-uuidLen:]
}

// readTranscript returns the unchanged history of a session, which is empty if there is none yet.
func readTranscript(s runnerscripts.Session) (runnerscripts.Transcript, error) {
	var t runnerscripts.Transcript
	text, err := agent.ReadIfExists(threadFile(s))
	thread := strings.TrimSpace(text)
	if err != nil || !agent.IsUUID(thread) {
		return t, err
	}
	all, err := rollouts(s)
	if err != nil {
		return t, err
	}
	parents := map[string]bool{thread: true}
	for _, file := range all {
		data, err := agent.ReadIfExists(file)
		if err != nil {
			return t, err
		}
		id := threadOf(file)
		if id == thread {
			t.Main = data
			continue
		}
		if meta, err := metaOf(data); err == nil && parents[meta.Parent] {
			parents[id] = true
			t.Subagents = append(t.Subagents, runnerscripts.SubagentTranscript{ID: id, Transcript: data})
		}
	}
	return t, nil
}

// meta is the first record of a rollout.
type meta struct {
	ID        string    `json:"id"`
	Timestamp time.Time `json:"timestamp"`
	Parent    string    `json:"parent_thread_id"`
}

func metaOf(rollout string) (meta, error) {
	var r struct {
		Type    string `json:"type"`
		Payload meta   `json:"payload"`
	}
	line, _, _ := strings.Cut(rollout, "\n")
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		return meta{}, err
	}
	if r.Type != "session_meta" || !agent.IsUUID(r.Payload.ID) {
		return meta{}, fmt.Errorf("it begins with a %q", r.Type)
	}
	return r.Payload, nil
}

// restore writes a history where the program looks for it.
func restore(s runnerscripts.Session, t runnerscripts.Transcript) error {
	if t.Main == "" {
		return nil
	}
	main, err := metaOf(t.Main)
	if err != nil {
		return agent.Invalid("restore a transcript as it was read: it is no rollout of Codex: %v", err)
	}
	all := []runnerscripts.SubagentTranscript{{ID: main.ID, Transcript: t.Main}}
	for _, r := range append(all, t.Subagents...) {
		m, err := metaOf(r.Transcript)
		if err != nil || m.ID != r.ID {
			return agent.Invalid("restore a transcript as it was read: that of the subagent %q is no rollout of it", r.ID)
		}
		if err := restoreRollout(s, m, r.Transcript); err != nil {
			return err
		}
	}
	return storeThread(s, main.ID)
}

func restoreRollout(s runnerscripts.Session, m meta, text string) error {
	file, err := findRollout(s, m.ID)
	if err != nil {
		return err
	}
	if file == "" {
		at := m.Timestamp.UTC()
		file = filepath.Join(configDir(s), "sessions", at.Format("2006"), at.Format("01"), at.Format("02"),
			rolloutPrefix+at.Format("2006-01-02T15-04-05")+"-"+m.ID+rolloutSuffix)
	}
	return agent.RestoreFile(file, text)
}

// repairRollout repairs a rollout after a crash, and reports whether it can be resumed. It removes a rollout
// without a first record, on which the program would fail. It terminates a truncated last line, so
// that the next record does not become part of it.
func repairRollout(file string) (bool, error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	first, err := runnerscripts.NewLineReader(f, 0).Next()
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read the transcript: %w", err)
	}
	if _, err := metaOf(string(first)); err != nil {
		return false, os.Remove(file)
	}
	last := make([]byte, 1)
	end, err := f.Seek(-1, io.SeekEnd)
	if err == nil {
		_, err = f.ReadAt(last, end)
	}
	if err == nil && last[0] != '\n' {
		_, err = f.WriteString("\n")
	}
	return err == nil, err
}
