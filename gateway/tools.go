package gateway

import "net/http"

// serveTools passes a request with the token on to Config.Tools.
func (g *Gateway) serveTools(w http.ResponseWriter, r *http.Request) {
	if token := tokenOf(r); !g.admit(token) {
		g.cfg.Logger.Warn("request refused", "reason", "token", "method", r.Method, "path", ToolsPath)
		if g.isForeign(token) {
			refuse(w, http.StatusForbidden, "permission_error", "the token is that of another session")
			return
		}
		refuse(w, http.StatusUnauthorized, "authentication_error", "the request has no valid token of this session")
		return
	}
	leave, ok := enter(r.Context(), g.tools)
	if !ok {
		return
	}
	defer leave()
	r = r.Clone(r.Context())
	for _, name := range keyHeaders() {
		r.Header.Del(name)
	}
	r.URL.RawQuery = "" // may have the token
	r.Body = &body{ReadCloser: http.MaxBytesReader(w, r.Body, maxToolBody), deadline: http.NewResponseController(w).SetReadDeadline}
	g.cfg.Tools.ServeHTTP(&answer{ResponseWriter: w, timeout: g.writeTimeout}, r)
}
