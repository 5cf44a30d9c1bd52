package sessionapi

import (
	"errors"
	"net/http"
	"slices"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// ErrMoving says that the server that had the session does not answer, and another one will have it soon.
var ErrMoving = errors.New("the session moves to another server; try again")

// codes are the kinds of errors of sessions, before those of their sandboxes.
var codes = slices.Concat(apierror.Table{
	{Name: "session_not_found", Status: http.StatusNotFound, Err: store.ErrNotFound},
	{Name: "session_locked", Status: http.StatusConflict, Err: store.ErrLocked},
	{Name: "session_closed", Status: http.StatusConflict, Err: session.ErrClosed},
	{Name: "session_busy", Status: http.StatusConflict, Err: session.ErrBusy},
	{Name: "not_pending", Status: http.StatusConflict, Err: session.ErrNotPending},
	{Name: "no_environment", Status: http.StatusConflict, Err: session.ErrNoEnvironment},
	{Name: "pruned", Status: http.StatusGone, Err: session.ErrPruned},
	{Name: "dropped", Status: http.StatusGone, Err: store.ErrDropped},
	{Name: "corrupt", Status: http.StatusInternalServerError, Err: store.ErrCorrupt},
	{Name: "store_newer", Status: http.StatusInternalServerError, Err: store.ErrNewer},
	{Name: "session_moving", Status: http.StatusServiceUnavailable, Err: ErrMoving},
	{Name: "store_unavailable", Status: http.StatusServiceUnavailable, Err: store.ErrUnavailable},
	{Name: "store_busy", Status: http.StatusServiceUnavailable, Err: store.ErrBusy},
	{Name: "continued_elsewhere", Status: http.StatusConflict, Err: store.ErrConflict},
	{Name: "invalid_config", Status: http.StatusBadRequest, Err: environment.ErrConfig},
	{Name: "untrusted", Status: http.StatusConflict, Err: environment.ErrTrust},
}, apierror.Common())

// Codes returns the kinds of errors of the whole interface.
func Codes() apierror.Table { return codes }
