package session

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// checkpoints returns the checkpoints of a session.
func checkpoints(t *testing.T, s *AgentSession) []Checkpoint {
	t.Helper()
	st, err := s.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st.Checkpoints
}

func reasons(all []Checkpoint) []runnerscripts.CheckpointReason {
	var list []runnerscripts.CheckpointReason
	for _, c := range all {
		list = append(list, c.Reason)
	}
	return list
}

func TestEveryQueryLeavesACheckpoint(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(write("a", "one")), steps(say("nothing")), steps(run("sh", "-c", "echo two >a"))))
	for _, p := range []string{"first\nwith a second line", "second", "third"} {
		turn := prompt(t, s, p)
		complete(t, turn)
		// The checkpoint of a completed query is already stored.
		all := checkpoints(t, s)
		if c := all[len(all)-1]; c.QueryID != turn.ID() || c.Prompt != strings.Split(p, "\n")[0] || c.Transcript == "" || c.Workspace == "" {
			t.Errorf("checkpoint %+v", c)
		}
	}
	all := checkpoints(t, s)
	query := runnerscripts.CheckpointQuery
	if got := reasons(all); !slices.Equal(got, []runnerscripts.CheckpointReason{runnerscripts.CheckpointStart, query, query, query}) {
		t.Fatalf("checkpoints %v", got)
	}
	if all[0].Files != 0 || all[1].Files != 1 || all[1].Bytes != 3 || all[1].Workspace != all[2].Workspace || all[2].Workspace == all[3].Workspace {
		t.Errorf("checkpoints %+v", all)
	}
	if err := s.TerminateEnvironment(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(checkpoints(t, s)); n != 4 {
		t.Errorf("%d checkpoints at the end, though nothing has changed", n)
	}
}

func TestRewindReturnsFilesAndConversation(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, memory()))
	for _, p := range []string{"one", "two", "three"} {
		converse(t, s, p)
	}
	if err := s.Rewind(t.Context(), 2); err != nil { // after "one"
		t.Fatal(err)
	}
	answer := converse(t, s, "other")
	if !strings.HasSuffix(answer, "turn 2, before: one") {
		t.Errorf("the agent said %q, want it to remember the first prompt only", answer)
	}
	if got, _ := written(t, s, "kept"); got != "1\n2\n" {
		t.Errorf("the workspace holds %q", got)
	}
	shown, err := Reduce(s.store.Events(t.Context(), s.id, 1))
	if err != nil {
		t.Fatal(err)
	}
	var users []string
	for _, b := range shown.Blocks {
		if b.Kind == BlockUser {
			users = append(users, b.Text)
		}
	}
	if !slices.Equal(users, []string{"one", "other"}) {
		t.Errorf("the conversation has the prompts %q", users)
	}
	all := checkpoints(t, s)
	if last := all[len(all)-1]; last.Parent != 2 || last.Number != 5 {
		t.Errorf("checkpoint %+v, want one that follows the second", last)
	}
	// Rewind also returns to a checkpoint of the branch that an earlier Rewind left.
	if err := s.Rewind(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	if answer := converse(t, s, "again"); !strings.Contains(answer, "two\nthree") {
		t.Errorf("the agent said %q, want it to remember all three", answer)
	}
}

func TestRewindSaysWhyItCannot(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(say("x")), steps(forever())))
	converse(t, s, "a")
	for _, n := range []int{-1, 0, 3} {
		if err := s.Rewind(t.Context(), n); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("to %d: %v", n, err)
		}
	}
	turn := prompt(t, s, "b")
	if err := s.Rewind(t.Context(), 1); !errors.Is(err, ErrBusy) {
		t.Errorf("while a query runs: %v", err)
	}
	if err := turn.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	complete(t, turn)
	none := scripted(t, steps(say("x")))
	none.NoFiles = true
	s = start(t, none)
	converse(t, s, "a")
	if err := s.Rewind(t.Context(), 1); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("without files: %v", err)
	}
}

func TestASandboxThatDiesInAQueryLosesWhatCameAfterTheLastCheckpoint(t *testing.T) {
	t.Parallel()
	kill := func(ctx context.Context, s *AgentSession) {
		if _, err := s.live().Files().(primitives.EnvironmentPrimitive).Terminate(ctx); err != nil {
			t.Error(err)
		}
	}
	after := steps(say("after: {{prompt}}")) // a scenario starts again after its last turn
	s := start(t, scripted(t, steps(write("kept", "x")), steps(write("saved", "x"), forever()), after, after, after))
	converse(t, s, "first")
	turn := prompt(t, s, "second")
	await(t, s, runnerscripts.TypeToolCallUpdate)
	awaitFile(t, s, "saved")
	c, err := s.Sync(t.Context())
	if err != nil || c.Reason != runnerscripts.CheckpointManual || c.Files != 2 {
		t.Fatalf("Sync: %+v, %v", c, err)
	}
	kill(t.Context(), s)
	if _, err := turn.Wait(t.Context()); !errors.Is(err, primitives.ErrUnavailable) && !errors.Is(err, primitives.ErrTerminated) {
		t.Errorf("the query: %v", err)
	}
	converse(t, s, "third")
	if got, _ := written(t, s, "saved"); got != "x" {
		t.Error("the new sandbox lacks what was saved while the query ran")
	}
	var told []string
	for _, ev := range logOf(t, s) {
		if log, ok := decode[runnerscripts.Log](ev); ok && ev.Type == runnerscripts.TypeLog && log.Level == "warn" {
			told = append(told, log.Message)
		}
	}
	if len(told) != 0 { // the checkpoint was taken after the query had begun
		t.Errorf("warnings %q", told)
	}
	turn = prompt(t, s, "fourth")
	kill(t.Context(), s)
	_, _ = turn.Wait(t.Context()) // the prompt may have run in the next sandbox
	converse(t, s, "fifth")
}

// awaitFile waits until the workspace has a file.
func awaitFile(t *testing.T, s *AgentSession, name string) {
	t.Helper()
	for {
		if _, ok := written(t, s, name); ok {
			return
		}
		if t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
	}
}

func TestALostWorkspaceIsReported(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(say("x")), steps(forever())))
	converse(t, s, "a")
	turn := prompt(t, s, "b")
	awaitFrom(t, s, turn.seq, runnerscripts.TypeQueryStarted)
	if _, err := s.live().Files().(primitives.EnvironmentPrimitive).Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := turn.Wait(t.Context()); err == nil {
		t.Fatal("the query completed")
	}
	prompt(t, s, "c")
	log := payload[runnerscripts.Log](t, awaitFrom(t, s, turn.seq, runnerscripts.TypeLog))
	if log.Level != "warn" || !strings.Contains(log.Message, "checkpoint 2, taken at ") {
		t.Errorf("log %+v", log)
	}
}

func TestCheckpointsAreTakenWhileAQueryRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.query = func(_ context.Context, q environment.Query, yield func(runnerscripts.Event, error) bool) {
			time.Sleep(150 * time.Second)
			yield(completed(q, runnerscripts.StopEndTurn), nil)
		}
		s := startFake(t, Config{HealthInterval: -1}, f)
		complete(t, prompt(t, s, "long"))
		var periodic int
		for _, c := range checkpoints(t, s) {
			if c.Reason == runnerscripts.CheckpointPeriodic {
				periodic++
			}
		}
		if periodic != 1 { // the second tick finds no change
			t.Errorf("%d periodic checkpoints in %v", periodic, reasons(checkpoints(t, s)))
		}
	})
}

func TestForkFromACheckpoint(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, memory()))
	for _, p := range []string{"one", "two"} {
		converse(t, s, p)
	}
	copies, err := s.ForkFrom(t.Context(), 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range copies {
		closeLater(t, c)
		if answer := converse(t, c, "other"); !strings.HasSuffix(answer, "turn 2, before: one") {
			t.Errorf("the copy said %q", answer)
		}
		if rec, err := s.store.Load(t.Context(), c.ID()); err != nil || rec.Parent != s.ID() {
			t.Errorf("record %+v, %v", rec, err)
		}
	}
	for _, n := range []int{0, 9} {
		if _, err := s.ForkFrom(t.Context(), n, 1); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("from %d: %v", n, err)
		}
	}
	if _, err := s.ForkFrom(t.Context(), 1, 0); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("no sessions: %v", err)
	}
}

// The first checkpoint is taken when a prompt has been accepted and the sandbox is ready. The prompt is not
// sent again in a fork, and it has not failed there.
func TestAForkFromTheMiddleOfAQueryHasNotFailed(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, memory()))
	converse(t, s, "one")
	copies, err := s.ForkFrom(t.Context(), 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	c := copies[0]
	closeLater(t, c)
	if status := c.statusNow(); status != statusIdle {
		t.Errorf("status %q", status)
	}
	log := logOf(t, c)
	inOrder(t, log, runnerscripts.TypeQueryQueued, runnerscripts.TypeQueryCompleted)
	if count(log, runnerscripts.TypeQueryFailed) != 0 {
		t.Error("a query of the fork has failed")
	}
	if answer := converse(t, c, "other"); !strings.HasSuffix(answer, "turn 1, before: ") {
		t.Errorf("the copy said %q", answer)
	}
}

func TestCheckpointsAreCompared(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(write("a", "one\n")), steps(write("a", "two\n"), write("b", "new\n"))))
	converse(t, s, "first")
	converse(t, s, "second")
	changes, err := s.Changes(t.Context(), 2, 0)
	if err != nil || len(changes) != 2 || changes[0].Path != "a" || changes[0].Kind != environment.Modified ||
		changes[1].Path != "b" || changes[1].Kind != environment.Created {
		t.Errorf("changes %+v, %v", changes, err)
	}
	var patch strings.Builder
	if err := s.Patch(t.Context(), &patch, 2, 3); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--- a/a", "-one", "+two", "new file mode 100644", "+++ b/b"} {
		if !strings.Contains(patch.String(), want) {
			t.Errorf("the patch lacks %q:\n%s", want, patch.String())
		}
	}
	if _, err := s.Changes(t.Context(), 7, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unknown checkpoint: %v", err)
	}
}

func TestTheFilesOfACheckpointAreRead(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(write("a", "one\n")), steps(write("d/b", "new\n"), write("d/c", "new\n")), steps(write("d/b", "two\n"))))
	for _, text := range []string{"first", "second", "third"} {
		converse(t, s, text)
	}
	for span, want := range map[[2]int]string{
		{0, 0}: "a one\nd/ d/b two\nd/c new\n", {0, 2}: "a one\n", {0, 3}: "a one\nd/ d/b new\nd/c new\n",
		{3, 0}: "d/ d/b two\n", {2, 3}: "d/ d/b new\nd/c new\n", {3, 2}: "", {2, 2}: "",
	} {
		var got strings.Builder
		err := archive.Pipe(
			func(w io.Writer) error { return ReadWorkspace(t.Context(), s.store, s.id, w, span[0], span[1]) },
			func(r io.Reader) error {
				in := tar.NewReader(r)
				for {
					h, err := in.Next()
					if errors.Is(err, io.EOF) {
						return nil
					}
					if err != nil {
						return err
					}
					got.WriteString(h.Name + " ")
					if _, err := io.Copy(&got, in); err != nil { //nolint:gosec // the test made it
						return err
					}
				}
			},
		)
		if err != nil || got.String() != want {
			t.Errorf("checkpoints %v: %q, %v, want %q", span, got.String(), err, want)
		}
	}
	if err := ReadWorkspace(t.Context(), s.store, s.id, io.Discard, 0, 7); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unknown checkpoint: %v", err)
	}
	if err := ReadWorkspace(t.Context(), s.store, s.id, io.Discard, 7, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("changes since an unknown checkpoint: %v", err)
	}
}

func TestADamagedCheckpointIsAnErrorAndChangesNothing(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(write("a", "x")), steps(say("y")))
	broken := &forgetful{Store: store.NewMemory()}
	cfg.Store = broken
	s := start(t, cfg)
	converse(t, s, "a")
	if err := s.TerminateEnvironment(t.Context()); err != nil {
		t.Fatal(err)
	}
	broken.lost.Store(true)
	if _, err := prompt(t, s, "b").Wait(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("with lost blobs: %v", err)
	}
	broken.lost.Store(false)
	converse(t, s, "c")
	if got, _ := written(t, s, "a"); got != "x" {
		t.Errorf("the workspace holds %q", got)
	}
}

// forgetful is a store that can lose its blobs.
type forgetful struct {
	store.Store
	lost atomic.Bool
}

func (f *forgetful) Blob(ctx context.Context, id string, d store.Digest) (io.ReadCloser, error) {
	if f.lost.Load() {
		return nil, fs.ErrNotExist
	}
	return f.Store.Blob(ctx, id, d)
}
