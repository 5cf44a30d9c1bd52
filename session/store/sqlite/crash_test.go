package sqlite

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/session/store"
)

// withSession returns a store with the session "s".
func withSession(t testing.TB) (s *Store, dir string) {
	t.Helper()
	dir = t.TempDir()
	s = opened(t, dir)
	if err := s.Create(t.Context(), store.Record{ID: "s", Agent: "script"}); err != nil {
		t.Fatal(err)
	}
	return s, dir
}

// check fails unless the log has exactly the events that the record counts, and at least as many
// as least.
func check(t *testing.T, s *Store, least uint64) {
	t.Helper()
	r, err := s.Load(t.Context(), "s")
	if err != nil || r.LastSeq < least {
		t.Fatalf("the session has %d events of the %d that were acknowledged, %v", r.LastSeq, least, err)
	}
	next := uint64(1)
	for ev, err := range s.Events(t.Context(), "s", 1) {
		if err != nil {
			t.Fatal(err)
		}
		if w := numbered(next); ev.Seq != next || string(ev.Payload) != string(w.Payload) || !ev.Time.Equal(w.Time) || ev.SessionID != "s" {
			t.Fatalf("event %d is %+v", next, ev)
		}
		next++
	}
	if next != r.LastSeq+1 {
		t.Fatalf("there are %d events, and the record counts %d", next-1, r.LastSeq)
	}
}

func blobOf(data []byte) store.Digest {
	sum := sha256.Sum256(data)
	return store.Digest(hex.EncodeToString(sum[:]))
}

// readBlob reads a blob to its end.
func readBlob(t *testing.T, s *Store, d store.Digest) ([]byte, error) {
	t.Helper()
	r, err := s.Blob(t.Context(), "s", d)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	return data, errors.Join(err, r.Close())
}

// acknowledged holds the last changes that a program printed before it was killed.
type acknowledged struct{ event, update uint64 }

// killWriter runs writeForever in another program, kills it at an arbitrary point after the
// given number of lines, and returns the changes that it acknowledged. It passes each line to
// see.
func killWriter(t *testing.T, dir string, lines int, see func(what string, n uint64)) (done acknowledged) {
	t.Helper()
	cmd := childCommand(t, "write", dir)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(out)
	for i := 0; ; i++ {
		if i == lines {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		line, err := in.ReadString('\n')
		if err != nil {
			break // the last line may be incomplete
		}
		var what string
		var n uint64
		if _, err := fmt.Sscan(line, &what, &n); err != nil {
			t.Fatalf("the program said %q", line)
		}
		see(what, n)
		switch what {
		case "event":
			done.event = n
		case "update":
			done.update = n
		}
	}
	_ = cmd.Wait() // it was killed
	return done
}

func TestWhatWasAcknowledgedSurvivesKill(t *testing.T) {
	s, dir := withSession(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	blobs := map[uint64]bool{}
	for range rounds {
		var put []uint64
		done := killWriter(t, dir, 1+random.IntN(60), func(what string, n uint64) {
			if what == "blob" {
				put = append(put, n)
			}
		})
		again := opened(t, dir)
		check(t, again, done.event)
		if r, err := again.Load(t.Context(), "s"); err != nil || r.StateSeq < done.update {
			t.Fatalf("update %d was acknowledged, and %d is there, %v", done.update, r.StateSeq, err)
		}
		for _, n := range put {
			blobs[n] = true
			if got, err := readBlob(t, again, blobOf(content(n))); err != nil || !bytes.Equal(got, content(n)) {
				t.Fatalf("blob %d: %d bytes, %v", n, len(got), err)
			}
		}
	}
	if _, err := s.Collect(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	for n := range blobs {
		if got, err := readBlob(t, s, blobOf(content(n))); err != nil || !bytes.Equal(got, content(n)) {
			t.Fatalf("blob %d after Collect: %d bytes, %v", n, len(got), err)
		}
	}
}

func TestTwoProgramsShareAStore(t *testing.T) {
	s, dir := withSession(t)
	outs := make([]bytes.Buffer, 2)
	var wait []func() error
	for i := range outs {
		cmd := childCommand(t, "share", dir)
		cmd.Stdout = &outs[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		wait = append(wait, cmd.Wait)
	}
	for i, w := range wait {
		if err := w(); err != nil {
			t.Errorf("%v: %s", err, outs[i].String())
		}
	}
	won := map[string]bool{}
	for line := range strings.Lines(outs[0].String() + outs[1].String()) {
		if won[line] {
			t.Errorf("%q was acknowledged twice", line)
		}
		won[line] = true
	}
	if len(won) != 2*shared {
		t.Errorf("%d events were acknowledged", len(won))
	}
	check(t, s, 2*shared)
}

func TestTheLockIsReleasedWhenItsOwnerDies(t *testing.T) {
	s, dir := withSession(t)
	cmd := childCommand(t, "lock", dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "locked\n" {
		t.Fatalf("the program said %q, %v", line, err)
	}
	_, err = s.Lock(t.Context(), "s")
	if !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("process %d (", cmd.Process.Pid)) {
		t.Errorf("lock of another program's session: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	unlock, err := s.Lock(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, lockFolder)); err != nil || len(left) != 1 || left[0].Name() != "open" {
		t.Errorf("lock files %v, %v", left, err)
	}
}
