package docker

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// slowly is a reader that takes its time.
type slowly struct {
	io.Reader
	each time.Duration
}

func (s *slowly) Read(p []byte) (int, error) {
	time.Sleep(s.each) // of a bubble
	return s.Reader.Read(p[:1])
}

func TestArchivesDoNotWaitForTheirReaders(t *testing.T) {
	for name, c := range map[string]struct {
		reader, engine time.Duration // for each byte
		whole          bool
	}{
		"one that is fast":                   {10 * time.Millisecond, 50 * time.Millisecond, true},
		"one that is slow":                   {100 * time.Millisecond, 50 * time.Millisecond, false},
		"one that has stopped":               {time.Hour, 50 * time.Millisecond, false},
		"one that is slow, but for a moment": {9 * time.Millisecond, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				content := strings.Repeat("x", 100)
				var archive bytes.Buffer
				w := tar.NewWriter(&archive)
				err := w.WriteHeader(&tar.Header{Name: "f", Size: int64(len(content))})
				_, werr := io.WriteString(w, content)
				if err := errors.Join(err, werr, w.Close()); err != nil {
					t.Fatal(err)
				}
				body := &slowly{Reader: &archive}
				in := tar.NewReader(body)
				if _, err := in.Next(); err != nil {
					t.Fatal(err)
				}
				body.each = c.engine
				ended := make(chan struct{})
				f := &packedFile{body: io.NopCloser(body), in: in, pace: startPace()}
				f.start(sync.OnceFunc(func() { close(ended) }))
				got, err := io.Copy(io.Discard, &slowly{f, c.reader})
				if whole := got == int64(len(content)); whole != c.whole || whole != (err == nil) {
					t.Errorf("%d bytes, %v", got, err)
				}
				if !c.whole {
					<-ended
				}
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestArchivesDoNotWaitForTheirSources(t *testing.T) {
	for name, c := range map[string]struct {
		source, engine time.Duration // for each byte
		whole          bool
	}{
		"one that is fast": {5 * time.Millisecond, 50 * time.Millisecond, true},
		"one that is slow": {100 * time.Millisecond, time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				content := &slowly{strings.NewReader(strings.Repeat("x", 100)), c.source}
				e, err := newEntry(t.Context().Err, guest.Staged{Name: "f"}, content, 100)
				if err != nil {
					t.Fatal(err)
				}
				archive, err := io.ReadAll(&slowly{e, c.engine})
				whole := len(archive) == 512+512+1024
				if err != nil || whole != c.whole || whole != (e.failure() == nil) {
					t.Errorf("%d bytes, %v, %v", len(archive), err, e.failure())
				}
			})
		})
	}
}
