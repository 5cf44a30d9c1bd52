package modal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
	"github.com/agentenv-dev/agentenv/primitives"
)

// stdinWrite is the call that carries operations.
const stdinWrite = "TaskExecStdinWrite"

// calls returns how often do called each method.
func calls(s *testmodal.Server, do func()) map[string]int {
	before := s.CallCounts()
	do()
	made := maps.Clone(s.CallCounts())
	for method, n := range before {
		if made[method] -= n; made[method] == 0 {
			delete(made, method)
		}
	}
	return made
}

func TestAnOperationIsOneCall(t *testing.T) {
	s := newServer(t)
	box := open(t, config(t))
	ctx := t.Context()
	if err := box.WriteFile(ctx, "f", strings.NewReader("content"), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		do   func() error
	}{
		{"Run", func() error {
			_, err := primitives.Run(ctx, box, primitives.Command{Args: []string{"true"}}, primitives.RunOptions{})
			return err
		}},
		{"Stat", func() error { _, err := box.Stat(ctx, "f"); return err }},
		{"List", func() error { _, err := box.List(ctx, ".", primitives.ListOptions{}); return err }},
		{"ReadFile", func() error { _, err := primitives.ReadFile(ctx, box, "f", 0); return err }},
		{"WriteFile", func() error {
			return box.WriteFile(ctx, "g", bytes.NewReader(make([]byte, 4<<10)), primitives.WriteOptions{})
		}},
		{"Mkdir", func() error { return box.Mkdir(ctx, "d", 0o755) }},
		{"Move", func() error { return box.Move(ctx, "f", "f") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			const times, most = 20, 22 // the last two end messages may need own calls
			var made map[string]int
			// On a busy machine more end messages may miss the next call: then repeat.
			for rounds := 0; rounds == 0 || rounds < 10 && made[stdinWrite] > most; rounds++ {
				made = calls(s, func() {
					for range times {
						if err := c.do(); err != nil {
							t.Fatal(err)
						}
					}
				})
			}
			if n := made[stdinWrite]; n < times || n > most {
				t.Errorf("%d operations are %d calls", times, n)
			}
			delete(made, stdinWrite)
			if len(made) > 0 {
				t.Errorf("there are other calls: %v", made)
			}
		})
	}
}

func TestAThousandFilesAreOneOperation(t *testing.T) {
	s := newServer(t)
	box := open(t, config(t))
	files := make([]primitives.File, 1000)
	for i := range files {
		files[i] = primitives.File{Path: fmt.Sprintf("many/%d", i), Content: bytes.Repeat([]byte{byte(i)}, 4<<10)}
	}
	made := calls(s, func() {
		errs, err := primitives.WriteFiles(t.Context(), box, files)
		if err := errors.Join(append(errs, err)...); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%v", made)
	// The files have 4 MB. A call carries all that was queued while the guest was busy.
	if n := made[stdinWrite]; n > 100 {
		t.Errorf("they are %d calls", n)
	}
	if got := strings.TrimSpace(run(t, box, "ls many | wc -l")); got != "1000" {
		t.Errorf("%s files are there", got)
	}
}

func TestALargeFileIsSentInLargePieces(t *testing.T) {
	s := newServer(t)
	box := open(t, config(t))
	const size = 32 << 20
	made := calls(s, func() {
		if err := box.WriteFile(t.Context(), "large", io.LimitReader(zeros{}, size), primitives.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%v", made)
	if n := made[stdinWrite]; n > size/(64<<10) {
		t.Errorf("%d bytes are %d calls", size, n)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestTheRunnerIsUploadedOnce(t *testing.T) {
	s := newServer(t)
	cfg := config(t)
	first := calls(s, func() { open(t, cfg) })
	second := calls(s, func() { open(t, cfg) })
	t.Logf("first %v, second %v", first, second)
	for method, want := range map[string][2]int{
		"SandboxCreateV2": {2, 1}, "SandboxTerminateV2": {1, 0}, // one more to publish the runner
		"TaskExecStdinWriteStream": {1, 0}, "TaskSnapshotDirectory": {1, 0}, "ImagePublish": {1, 0},
		"TaskMountDirectory": {1, 1},
	} {
		if first[method] != want[0] || second[method] != want[1] {
			t.Errorf("%s is called %d and %d times, want %v", method, first[method], second[method], want)
		}
	}
}

// await polls so until it returns true.
func await(t *testing.T, so func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-ctx.Done():
			t.Fatal("it does not come to be")
		case <-tick.C:
		}
	}
}
