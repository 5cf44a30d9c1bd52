package local

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// late returns an output that holds text, and whose reads no longer wait. Its writing end stays
// open.
func late(t *testing.T, text string) (o *output, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	o = &output{f: r}
	if !o.hurry() {
		t.Fatal("the output has no end to wait for")
	}
	return o, w
}

func TestWhatHasBeenPrintedIsReadHoweverLate(t *testing.T) {
	for _, limit := range []int64{1 << 20, 4} {
		o, _ := late(t, "last words")
		c := collector{limit: limit}
		drain(o, &c)
		if want := "last words"[:min(limit, 10)]; string(c.data) != want || c.dropped != 10-int64(len(want)) {
			t.Errorf("%q was read, and %d bytes more", c.data, c.dropped)
		}
	}
}

func TestWhoGoesOnPrintingIsNotReadForEver(t *testing.T) {
	o, w := late(t, "")
	var writing sync.WaitGroup
	writing.Go(func() {
		for piece := make([]byte, 4<<10); ; {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	})
	c := collector{limit: 1 << 30}
	drain(o, &c)
	_ = w.SetWriteDeadline(time.Now())
	writing.Wait()
}

// A full disk at the end of the output once blocked the supervisor of a durable command forever:
// the output was closed while its descriptor was in use.
func TestAFullDiskEndsWhatIsReadLate(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	o, w := late(t, "last words")
	s := &spool{f: full, left: 1 << 20, buf: make([]byte, 4)}
	if err := s.take(o); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("take: %v", err)
	}
	if _, err := w.WriteString("more"); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a command whose output is not kept goes on: %v", err)
	}
}
