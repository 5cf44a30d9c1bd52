package term

import (
	"errors"
	"io"
	"testing"
)

func TestAFullBacklogFailsWhenItIsEnough(t *testing.T) {
	read, write := io.Pipe()
	enough := make(chan struct{})
	b := newBacklog(write, enough)
	text := make([]byte, maxBacklog)
	for range 2 { // the first is being written, the second fills the backlog
		if _, err := b.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	failed := make(chan error)
	go func() {
		for {
			if _, err := b.Write(text); err != nil {
				failed <- err
				return
			}
		}
	}()
	close(enough)
	if err := <-failed; !errors.Is(err, errNotRead) {
		t.Error(err)
	}
	if err := b.flush(enough); err != nil {
		t.Error(err)
	}
	read.Close()
	if err := b.flush(nil); err == nil {
		t.Error("the reader has gone, and flush did not say so")
	}
}
