package modal

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// calls is a command's standard input that blocks every call until the test releases it.
type calls struct {
	entered chan []byte
	leave   chan error
	ended   chan struct{}
}

func newCalls() *calls {
	return &calls{make(chan []byte, 1), make(chan error), make(chan struct{})}
}

func (c *calls) Write(p []byte) (int, error) {
	c.entered <- bytes.Clone(p)
	return len(p), <-c.leave
}

func (c *calls) Close() error { close(c.ended); return nil }

func open(t *testing.T) (*calls, *stream) {
	t.Helper()
	in := newCalls()
	s := newStream(in, io.NopCloser(bytes.NewReader(nil)), io.NopCloser(bytes.NewReader(nil)))
	t.Cleanup(func() { s.join(time.Minute) })
	return in, s
}

func write(t *testing.T, w func([]byte) (int, error), text string) {
	t.Helper()
	if n, err := w([]byte(text)); n != len(text) || err != nil {
		t.Fatalf("writing %q: %d, %v", text, n, err)
	}
}

func TestWritesDuringACallGoWithTheNextOne(t *testing.T) {
	in, s := open(t)
	write(t, s.Write, "first")
	if got := <-in.entered; string(got) != "first" {
		t.Errorf("the first call carries %q", got)
	}
	for range 1000 {
		write(t, s.Write, "more")
	}
	in.leave <- nil
	if got := <-in.entered; string(got) != string(bytes.Repeat([]byte("more"), 1000)) {
		t.Errorf("the second call carries %d bytes, want all 4000", len(got))
	}
	in.leave <- nil
	_ = s.Close()
	<-in.ended
}

func TestADeferredWriteGoesWithTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no time passes between the two writes
		in, s := open(t)
		write(t, s.WriteLater, "end,")
		write(t, s.Write, "next")
		if got := <-in.entered; string(got) != "end,next" {
			t.Errorf("the call carries %q", got)
		}
		in.leave <- nil
		write(t, s.WriteLater, "alone")
		if got := <-in.entered; string(got) != "alone" {
			t.Errorf("what stays alone is not sent: %q", got)
		}
		in.leave <- nil
		_ = s.Close()
		<-in.ended
	})
}

func TestCloseSendsTheRestAndTheEnd(t *testing.T) {
	in, s := open(t)
	write(t, s.WriteLater, "rest")
	_ = s.Close()
	if got := <-in.entered; string(got) != "rest" {
		t.Errorf("the last call carries %q", got)
	}
	in.leave <- nil
	<-in.ended
	if _, err := s.Write([]byte("x")); err == nil {
		t.Error("a closed stream takes more")
	}
}

func TestAfterACallFailedWritersAndReadersLearnIt(t *testing.T) {
	in, s := open(t)
	cause := errors.New("no way")
	write(t, s.Write, "first")
	<-in.entered
	blocked := make(chan error)
	go func() {
		var err error
		for err == nil { // until there is no room, and then it fails
			_, err = s.Write(make([]byte, 1<<20))
		}
		blocked <- err
	}()
	in.leave <- cause
	if err := <-blocked; !errors.Is(err, cause) {
		t.Errorf("the error is %v, want %v", err, cause)
	}
	_ = s.Close()
	<-s.done
}

func TestAnAbandonedStreamSendsNothingMore(t *testing.T) {
	in, s := open(t)
	write(t, s.Write, "first")
	<-in.entered
	write(t, s.Write, "second")
	s.abandon()
	write(t, s.Write, "third")
	in.leave <- nil
	_ = s.Close()
	<-s.done
	select {
	case p := <-in.entered:
		t.Errorf("another call carries %q", p)
	case <-in.ended:
		t.Error("the end is sent")
	default:
	}
}
