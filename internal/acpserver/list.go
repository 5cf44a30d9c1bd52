package acpserver

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"path/filepath"
	"time"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

const (
	// pageSize is how many sessions are listed at once.
	pageSize = 100
	// maxPages is how many lists a client may leave unfinished.
	maxPages = 4
)

// pages are the rest of lists, by their cursors, the newest last: a list does not change while the client reads it.
type pages []page

type page struct {
	cursor string
	rest   []acp.SessionInfo
}

// next returns the next page of a list, and keeps the rest.
func (p *pages) next(all []acp.SessionInfo) acp.ListSessionsResponse {
	res := acp.ListSessionsResponse{Sessions: all[:min(pageSize, len(all))]}
	if rest := all[len(res.Sessions):]; len(rest) > 0 {
		cursor := rand.Text()
		res.NextCursor = &cursor
		*p = append(*p, page{cursor, rest})
		*p = (*p)[max(0, len(*p)-maxPages):]
	}
	return res
}

// listSessions lists the sessions in which something was said, the latest first.
func (s *server) listSessions(ctx context.Context, params json.RawMessage) (work, error) {
	req, err := decode[acp.ListSessionsRequest](params)
	if err != nil {
		return nil, err
	}
	folder := ""
	if req.Cwd != nil {
		if folder = filepath.Clean(*req.Cwd); !filepath.IsAbs(folder) {
			return nil, Invalid("cwd: %q is not absolute; give the absolute path of a folder", *req.Cwd)
		}
	}
	return func(context.Context) (any, error) {
		if req.Cursor != nil {
			return s.nextPage(*req.Cursor)
		}
		list, err := s.list(ctx, folder)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.pages.next(list), nil
	}, nil
}

func (s *server) nextPage(cursor string) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pages {
		if p.cursor == cursor {
			return s.pages.next(p.rest), nil
		}
	}
	return nil, Invalid("cursor: %q is not known here; list again without one", cursor)
}

// list returns all sessions of a folder; empty means of every folder.
func (s *server) list(ctx context.Context, folder string) ([]acp.SessionInfo, error) {
	list := []acp.SessionInfo{}
	for record, err := range s.cfg.Host.List(ctx, store.Filter{Metadata: s.cfg.Metadata}) {
		switch {
		case errors.Is(err, store.ErrCorrupt):
			s.log.Warn("a session cannot be listed", "session", record.ID, "error", err)
			continue
		case err != nil:
			return nil, err
		case record.LastSeq == 0:
			continue
		}
		at := record.Metadata[folderKey]
		if at == "" {
			if cfg, err := session.Stored(ctx, s.cfg.Host.Store(), record.ID); err == nil {
				at = folderOf(record, cfg)
			}
		}
		if folder != "" && at != folder {
			continue
		}
		updated := record.UpdatedAt.UTC().Format(time.RFC3339)
		list = append(list, acp.SessionInfo{
			SessionId: acp.SessionId(record.ID), Cwd: cmp.Or(at, "/"), Title: given(record.Title), UpdatedAt: &updated,
		})
	}
	return list, nil
}
