//go:build !race

package query

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testmemory"
	"github.com/agentenv-dev/agentenv/primitives"
)

func TestFloodOfRequestsOfAFollowedQueryIsBounded(t *testing.T) {
	line := `{"type":"request_permission","payload":{"id":"` + strings.Repeat("x", 1000) + `%d"}}` + "\n"
	in, out := io.Pipe()
	go func() {
		w := bufio.NewWriter(out)
		for i := range 100_000 {
			if _, err := fmt.Fprintf(w, line, i); err != nil {
				return
			}
		}
		_ = out.CloseWithError(w.Flush())
	}()
	defer in.Close()
	testmemory.AtMost(t, 3*maxSettled, func() {
		if _, err := readProgress(in, 0, "q"); !errors.Is(err, primitives.ErrLimit) {
			t.Errorf("error %v, want ErrLimit", err)
		}
	})
}
