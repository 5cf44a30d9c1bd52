package testleak

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const leaks = "TESTLEAK_LEAKS"

// TestMain runs the tests, or as a child of one leaves a goroutine for a while that goleak alone does not wait for.
func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(leaks); ok {
		life, err := time.ParseDuration(text)
		if err != nil {
			panic(err)
		}
		if life > patience {
			patience = time.Second
		}
		go time.Sleep(life)
		Exit(0)
	}
	Main(m)
}

func TestAGoroutineThatEndsIsNoLeak(t *testing.T) {
	t.Parallel()
	out, err := child(t, "2s")
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestAGoroutineThatStaysIsALeak(t *testing.T) {
	t.Parallel()
	out, err := child(t, "24h")
	if err == nil || !strings.Contains(out, "found unexpected goroutines") {
		t.Errorf("%v: %s", err, out)
	}
}

func child(t *testing.T, life string) (out string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), leaks+"="+life)
	data, err := cmd.CombinedOutput()
	return string(data), err
}
