package credentials

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
)

// setterVariable makes the test program store secrets, concurrently with others.
const setterVariable = "CREDENTIALS_TEST_SETTER"

func TestMain(m *testing.M) {
	if prefix := os.Getenv(setterVariable); prefix != "" {
		if err := setSome(context.Background(), prefix); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testleak.Main(m)
}

const perSetter = 10

func setSome(ctx context.Context, prefix string) error {
	s, err := Open()
	if err != nil {
		return err
	}
	var errs []error
	for i := range perSetter {
		errs = append(errs, s.Set(ctx, fmt.Sprintf("%s%d", prefix, i), marker))
	}
	return errors.Join(append(errs, s.Close())...)
}

func TestProgramsThatWriteAtOnceLoseNothing(t *testing.T) {
	s := withKey(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	prefixes := []string{"one", "two"}
	running := make([]*exec.Cmd, len(prefixes))
	outputs := make([]bytes.Buffer, len(prefixes))
	for i, prefix := range prefixes {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), setterVariable+"="+prefix)
		cmd.Stdout, cmd.Stderr = &outputs[i], &outputs[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		running[i] = cmd
	}
	ours := make(chan error, 1)
	go func() { ours <- setSome(t.Context(), "three") }()
	for i, cmd := range running {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, &outputs[i])
		}
	}
	if err := <-ours; err != nil {
		t.Error(err)
	}
	if list, err := s.List(); err != nil || len(list) != 3*perSetter {
		t.Errorf("%d are left of %d, %v", len(list), 3*perSetter, err)
	}
}

func TestAWaitForAnotherProgramEndsWithItsContext(t *testing.T) {
	s := withKey(t)
	unlock, err := s.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for op, err := range map[string]error{"set": s.Set(ctx, "a", marker), "remove": s.Remove(ctx, "a"), "init": second(s.Init(ctx))} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", op, err)
		}
	}
}
