package sqlite

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// childVariable names the environment variable with the name of a child program. It makes the
// test binary run that program, in the folder of its first argument. The tests kill these
// programs.
const childVariable = "SQLITE_TEST_CHILD"

var children = map[string]func(ctx context.Context, dir string) error{
	"write":  writeForever,
	"share":  writeShared,
	"lock":   lockForever,
	"backup": backupForever,
	"unused": findUnused,
}

// child runs the program that childVariable names, and reports whether it names one.
func child() bool {
	run := children[os.Getenv(childVariable)]
	if run == nil {
		return false
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	return true
}

func childCommand(t *testing.T, name, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], dir)
	cmd.Env = append(os.Environ(), childVariable+"="+name)
	cmd.Stderr = os.Stderr
	return cmd
}

func numbered(seq uint64) runnerscripts.Event {
	return runnerscripts.Event{
		Seq: seq, Type: runnerscripts.TypeLog, SessionID: "s", Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Payload: json.RawMessage(fmt.Sprintf(`{"n": %d, "text":"%s"}`, seq, strings.Repeat("x", int(seq*37%300)))),
	}
}

// content returns the blob for n. One in three is large enough to be stored as a file.
func content(n uint64) []byte {
	if n%3 == 0 {
		return noise(n, maxInline+1000)
	}
	return bytes.Repeat([]byte(fmt.Sprintf("%08d", n)), 1000/8)
}

// noise returns bytes that cannot be compressed, the same ones for the same seed.
func noise(seed uint64, size int) []byte {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8(sha256.Sum256(binary.BigEndian.AppendUint64(nil, seed))).Read(data) // it never fails
	return data
}

// writeForever appends events, stores blobs and updates the record, and prints each acknowledged
// change.
func writeForever(ctx context.Context, dir string) error {
	s, err := Open(ctx, dir)
	if err != nil {
		return err
	}
	r, err := s.Load(ctx, "s")
	if err != nil {
		return err
	}
	for seq := r.LastSeq; ; {
		var events []runnerscripts.Event
		for range seq%7 + 1 {
			seq++
			events = append(events, numbered(seq))
		}
		if err := s.Append(ctx, "s", events...); err != nil {
			return err
		}
		fmt.Println("event", seq)
		if _, err := store.PutBlob(ctx, s, "s", bytes.NewReader(content(seq))); err != nil {
			return err
		}
		fmt.Println("blob", seq)
		if err := s.Update(ctx, "s", func(r *store.Record) { r.StateSeq = seq }); err != nil {
			return err
		}
		fmt.Println("update", seq)
	}
}

// shared is how many events each program appends to a shared session.
const shared = 100

// writeShared appends events to a session to which another program appends, too.
func writeShared(ctx context.Context, dir string) error {
	s, err := Open(ctx, dir)
	if err != nil {
		return err
	}
	for n := 0; n < shared; {
		r, err := s.Load(ctx, "s")
		if err != nil {
			return err
		}
		switch err := s.Append(ctx, "s", numbered(r.LastSeq+1)); {
		case err == nil:
			fmt.Println("event", r.LastSeq+1)
			n++
		case !errors.Is(err, store.ErrConflict):
			return err
		}
	}
	return s.Close()
}

// lockForever locks a session until its input ends.
func lockForever(ctx context.Context, dir string) error {
	s, err := Open(ctx, dir)
	if err != nil {
		return err
	}
	if _, err := s.Lock(ctx, "s"); err != nil {
		return err
	}
	fmt.Println("locked")
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	return err
}

// blobs returns a sequence of readers of the contents.
func blobs(contents ...[]byte) func(yield func(io.Reader, error) bool) {
	return func(yield func(io.Reader, error) bool) {
		for _, c := range contents {
			if !yield(bytes.NewReader(c), nil) {
				return
			}
		}
	}
}
