package server

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/sessionapi"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/session"
)

func (s *Server) files(c *call, _ none) (sessionapi.Files, error) {
	opts := environment.FilesOptions{Ignore: c.query.values["ignore"], MaxContent: int64(c.query.number("max_content"))}
	if slices.Equal(opts.Ignore, []string{""}) {
		opts.Ignore = []string{} // nothing
	}
	if c.query.err != nil {
		return sessionapi.Files{}, c.query.err
	}
	open, err := s.session(c)
	if err != nil {
		return sessionapi.Files{}, err
	}
	files, err := open.Files(c.Context(), opts)
	return sessionapi.Files{Files: files}, err
}

func (s *Server) readFile(w http.ResponseWriter, c *call) error {
	name := c.query.text("path")
	if c.query.err != nil {
		return c.query.err
	}
	open, err := s.session(c)
	if err != nil {
		return err
	}
	content, err := open.OpenFile(c.Context(), name)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }() // it was only read
	return s.stream(w, c, "application/octet-stream", func(w io.Writer) error {
		_, err := io.Copy(w, content)
		return err
	})
}

// stream answers with what write writes. An error before the first byte is returned; a later one breaks the connection, so
// that nobody takes the beginning for the whole.
func (s *Server) stream(w http.ResponseWriter, c *call, media string, write func(io.Writer) error) error {
	t := &tardy{w: w, media: media}
	buffered := bufio.NewWriterSize(t, 64<<10)
	err := write(buffered)
	if err == nil {
		err = buffered.Flush()
	}
	switch {
	case err != nil && t.begun:
		s.log.Warn("an answer was cut off", "method", c.Method, "path", c.URL.Path, "error", err)
		panic(http.ErrAbortHandler)
	case err != nil:
		return err
	case !t.begun: // it is empty
		_, err = t.Write(nil)
	}
	return err
}

// tardy writes the header of an answer with the first bytes.
type tardy struct {
	w     http.ResponseWriter
	media string
	begun bool
}

func (t *tardy) Write(p []byte) (int, error) {
	if !t.begun {
		t.begun = true
		t.w.Header().Set("Content-Type", t.media)
		t.w.Header().Set("Content-Security-Policy", "sandbox")
		t.w.WriteHeader(http.StatusOK)
	}
	_ = http.NewResponseController(t.w).SetWriteDeadline(time.Now().Add(writeTimeout)) // a writer of a test may have none
	return t.w.Write(p)
}

func (s *Server) writeFile(w http.ResponseWriter, c *call) error {
	opts := primitives.WriteOptions{
		Append: c.query.flag("append"), Exclusive: c.query.flag("exclusive"), IfRevision: c.query.text("if_revision"),
	}
	name := c.query.text("path")
	if mode := c.query.text("mode"); mode != "" {
		bits, err := strconv.ParseUint(mode, 8, 32)
		if err != nil || fs.FileMode(bits).Perm() != fs.FileMode(bits) {
			c.query.fail("mode", "%q is no permission, such as 0644", mode)
		}
		opts.Mode = fs.FileMode(bits)
	}
	if c.query.err != nil {
		return c.query.err
	}
	open, err := s.session(c)
	if err != nil {
		return err
	}
	if err := open.WriteFile(c.Context(), name, c.Body, opts); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) sync(c *call, _ none) (session.Checkpoint, error) {
	open, err := s.session(c)
	if err != nil {
		return session.Checkpoint{}, err
	}
	return open.Sync(c.Context())
}

// span returns two numbers of checkpoints.
func span(c *call) (from, to int, err error) {
	from, to = int(c.query.number("from")), int(c.query.number("to"))
	return from, to, c.query.err
}

func (s *Server) changes(c *call, _ none) (sessionapi.Changes, error) {
	from, to, err := span(c)
	if err != nil {
		return sessionapi.Changes{}, err
	}
	var list []environment.Change
	if open := s.opened(c); open != nil {
		list, err = open.Changes(c.Context(), from, to)
	} else {
		list, err = session.ReadChanges(c.Context(), s.cfg.Host.Store(), c.PathValue("id"), from, to)
	}
	return sessionapi.Changes{Changes: list}, err
}

func (s *Server) patch(w http.ResponseWriter, c *call) error {
	from, to, err := span(c)
	if err != nil {
		return err
	}
	return s.stream(w, c, "text/x-patch", func(w io.Writer) error {
		if open := s.opened(c); open != nil {
			return open.Patch(c.Context(), w, from, to)
		}
		return session.ReadPatch(c.Context(), s.cfg.Host.Store(), c.PathValue("id"), w, from, to)
	})
}

func (s *Server) readWorkspace(w http.ResponseWriter, c *call) error {
	from, to, err := span(c)
	if err != nil {
		return err
	}
	return s.stream(w, c, tarMedia, func(w io.Writer) error {
		return session.ReadWorkspace(c.Context(), s.cfg.Host.Store(), c.PathValue("id"), w, from, to)
	})
}

func (s *Server) writeWorkspace(w http.ResponseWriter, c *call) error {
	open, err := s.session(c)
	if err != nil {
		return err
	}
	if err := open.WriteWorkspace(c.Context(), c.Body); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) rewind(c *call, in sessionapi.Rewind) (none, error) {
	open, err := s.session(c)
	if err != nil {
		return none{}, err
	}
	if in.Checkpoint < 0 {
		return none{}, fmt.Errorf("rewind: %w: checkpoint %d", fs.ErrNotExist, in.Checkpoint)
	}
	return none{}, open.Rewind(c.Context(), in.Checkpoint)
}
