package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/internal/egress"
)

// Limits of the proxy of one gateway.
const (
	maxExchanges  = 128 // requests and tunnels; half of maxConns, so that models stay reachable
	maxAnswerHead = 256 << 10

	helloTimeout  = 10 * time.Second // for a TLS client's first message
	answerTimeout = 5 * time.Minute  // for the head of an answer
	tunnelIdle    = 10 * time.Minute // without a byte in either direction
)

// outward is the HTTP proxy to allowed hosts.
type outward struct {
	gateway   *Gateway
	on        bool
	dialer    egress.Dialer
	transport *http.Transport
	forward   *httputil.ReverseProxy
	// The constants, except in tests.
	helloTimeout, tunnelIdle time.Duration

	work sync.WaitGroup // of the exchanges

	mu        sync.Mutex
	closed    bool
	rules     egress.Rules
	exchanges map[*exchange]struct{}
}

// exchange is a request or a tunnel to an allowed host. outward.mu protects its mutable fields.
type exchange struct {
	target egress.Target
	end    func()
}

// newOutward returns the proxy. Without a list of hosts, the proxy is disabled.
func newOutward(g *Gateway) (*outward, error) {
	o := &outward{gateway: g, on: g.cfg.AllowHosts != nil, helloTimeout: helloTimeout, tunnelIdle: tunnelIdle, exchanges: map[*exchange]struct{}{}}
	if !o.on {
		return o, nil
	}
	if err := o.allow(g.cfg.AllowHosts); err != nil {
		return nil, err
	}
	o.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			target, err := egress.ParseTarget(address, 0)
			if err != nil {
				return nil, err
			}
			return o.dialer.Dial(ctx, target)
		},
		DisableCompression: true, MaxResponseHeaderBytes: maxAnswerHead, ResponseHeaderTimeout: answerTimeout,
		MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second,
	}
	o.forward = &httputil.ReverseProxy{
		Transport:     o.transport,
		FlushInterval: -1, // do not buffer streams
		ErrorLog:      g.cfg.Logger.StandardLogger(nil),
		Rewrite:       func(p *httputil.ProxyRequest) { p.Out.Host = p.Out.URL.Host },
		ErrorHandler:  func(w http.ResponseWriter, r *http.Request, err error) { o.failed(w, targetOf(r), err) },
	}
	return o, nil
}

// SetAllowHosts replaces Config.AllowHosts and ends the exchanges with hosts that are no longer
// allowed. It returns an [ErrConfig], and changes nothing, if a host is invalid or Config had
// no list.
func (g *Gateway) SetAllowHosts(hosts []string) error {
	if !g.outward.on {
		return fmt.Errorf("%w: allow_hosts: the gateway was made without it; give it a list, which may be empty, from the beginning", ErrConfig)
	}
	return g.outward.allow(hosts)
}

func (o *outward) allow(hosts []string) error {
	rules, err := egress.ParseRules(hosts)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rules = rules
	for x := range o.exchanges {
		if !rules.Allow(x.target) {
			x.end()
		}
	}
	return nil
}

// isOutward reports whether r is a proxy request.
func isOutward(r *http.Request) bool { return r.Method == http.MethodConnect || r.URL.IsAbs() }

type targetKey struct{}

func targetOf(r *http.Request) egress.Target {
	target, _ := r.Context().Value(targetKey{}).(egress.Target)
	return target
}

// ServeHTTP checks a proxy request and passes it on.
func (o *outward) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !o.on {
		explain(w, http.StatusForbidden, "the gateway of this sandbox is no proxy; to reach hosts through it, give sandbox.allow_hosts a list")
		return
	}
	token, given := proxyToken(r)
	if !given || !o.gateway.admit(token) {
		if given { // some clients send the first request without a token
			o.gateway.cfg.Logger.Warn("request refused", "reason", "token", "method", r.Method)
		}
		w.Header().Set("Proxy-Authenticate", `Basic realm="agentenv"`)
		explain(w, http.StatusProxyAuthRequired, "the request has no valid token of this session; take the address of the proxy from HTTPS_PROXY as it is")
		return
	}
	target, problem := readTarget(r)
	if problem != "" {
		o.refuse(w, fmt.Sprintf("%.200q", r.RequestURI), problem)
		return
	}
	x := &exchange{target: target}
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), targetKey{}, target))
	defer cancel()
	x.end = cancel
	status, problem := o.enter(x)
	switch {
	case problem != "" && status == http.StatusForbidden:
		o.refuse(w, target.String(), problem)
		return
	case problem != "":
		w.Header().Set("Retry-After", "1")
		explain(w, status, problem)
		return
	}
	defer o.leave(x)
	r = r.WithContext(ctx)
	if r.Method == http.MethodConnect {
		o.connect(w, r, x)
		return
	}
	o.pass(w, r, target)
}

// proxyToken returns the password of Proxy-Authorization.
func proxyToken(r *http.Request) (token string, given bool) {
	value := r.Header.Get("Proxy-Authorization")
	_, token, _ = (&http.Request{Header: http.Header{"Authorization": {value}}}).BasicAuth()
	return token, value != ""
}

// readTarget returns the target of a request.
func readTarget(r *http.Request) (target egress.Target, problem string) {
	var err error
	switch {
	case r.Method == http.MethodConnect:
		if r.RequestURI != r.URL.Host || r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
			return target, "it is no CONNECT to a host and a port"
		}
		target, err = egress.ParseTarget(r.URL.Host, 0)
	case r.URL.Scheme != "http":
		return target, "the proxy passes on requests to http:// addresses; https:// needs CONNECT"
	default:
		target, err = egress.ParseTarget(r.URL.Host, 80)
	}
	switch {
	case err != nil:
		return target, err.Error()
	case target.Port == 0:
		return target, "it names no port"
	}
	return target, ""
}

// enter registers an exchange if its host is allowed and the limit of exchanges is not reached.
func (o *outward) enter(x *exchange) (status int, problem string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !o.rules.Allow(x.target):
		return http.StatusForbidden, fmt.Sprintf("no rule allows it; to allow it, add %q to sandbox.allow_hosts", x.target.Rule())
	case o.closed:
		return http.StatusServiceUnavailable, "the session has ended"
	case len(o.exchanges) == maxExchanges:
		return http.StatusServiceUnavailable, fmt.Sprintf("%d connections of this sandbox are open, and no more can be", maxExchanges)
	}
	o.exchanges[x] = struct{}{}
	o.work.Add(1)
	return 0, ""
}

func (o *outward) leave(x *exchange) {
	o.mu.Lock()
	delete(o.exchanges, x)
	o.mu.Unlock()
	o.work.Done()
}

// close ends all exchanges and waits for them.
func (o *outward) close() {
	o.mu.Lock()
	o.closed = true
	for x := range o.exchanges {
		x.end()
	}
	o.mu.Unlock()
	o.work.Wait()
	if o.transport != nil {
		o.transport.CloseIdleConnections()
	}
}

// pass forwards a plain HTTP request.
func (o *outward) pass(w http.ResponseWriter, r *http.Request, target egress.Target) {
	o.gateway.cfg.Logger.Info("host allowed", "host", target.String(), "method", r.Method)
	r.URL.Host = target.String()
	if target.Port == 80 {
		r.URL.Host = strings.TrimSuffix(r.URL.Host, ":80")
	}
	r.Header.Del("Upgrade") // the upgraded protocol would not be HTTP
	r.Body = &body{ReadCloser: r.Body, deadline: http.NewResponseController(w).SetReadDeadline}
	o.forward.ServeHTTP(&answer{ResponseWriter: w, timeout: o.gateway.writeTimeout}, r)
}

// connect opens a tunnel for TLS.
func (o *outward) connect(w http.ResponseWriter, r *http.Request, x *exchange) {
	far, err := o.dialer.Dial(r.Context(), x.target)
	if err != nil {
		o.failed(w, x.target, err)
		return
	}
	defer far.Close()
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer near.Close()
	defer context.AfterFunc(r.Context(), func() { _ = errors.Join(near.Close(), far.Close()) })()
	_ = near.SetDeadline(time.Now().Add(o.helloTimeout))
	if _, err := io.WriteString(near, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	hello, err := egress.CheckHello(r.Context(), buffered.Reader, x.target)
	if refused, ok := errors.AsType[*egress.HelloError](err); ok {
		o.audit(x.target.String(), refused.Why)
		said := egress.UnrecognizedName
		if refused.Plain {
			said = fmt.Appendf(nil, "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\nagentenv: %s\n", refused.Why)
		}
		_, _ = near.Write(said)
		return
	}
	if err != nil {
		o.gateway.cfg.Logger.Info("tunnel closed before its first message", "host", x.target.String(), "error", err)
		return
	}
	_ = near.SetDeadline(time.Time{})
	o.gateway.cfg.Logger.Info("host allowed", "host", x.target.String(), "method", r.Method)
	if _, err := far.Write(hello); err == nil {
		o.carry(near, buffered, far)
	}
}

// carry copies in both directions until the host closes its side or the tunnel is idle for
// tunnelIdle.
func (o *outward) carry(near net.Conn, buffered io.Reader, far net.Conn) {
	idle := time.AfterFunc(o.tunnelIdle, func() { _ = errors.Join(near.Close(), far.Close()) })
	defer idle.Stop()
	var out sync.WaitGroup
	out.Go(func() {
		_, err := io.Copy(far, watched{buffered, idle, o.tunnelIdle})
		if half, ok := far.(interface{ CloseWrite() error }); ok && err == nil {
			_ = half.CloseWrite()
			return
		}
		_ = far.Close()
	})
	_, _ = io.Copy(near, watched{far, idle, o.tunnelIdle})
	_ = near.Close()
	out.Wait()
}

// watched resets a timer on every read.
type watched struct {
	io.Reader
	timer *time.Timer
	idle  time.Duration
}

func (r watched) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.timer.Reset(r.idle)
	}
	return n, err
}

// failed answers a request whose host is unreachable or forbidden.
func (o *outward) failed(w http.ResponseWriter, target egress.Target, err error) {
	if refused, ok := errors.AsType[*egress.AddressError](err); ok {
		o.refuse(w, target.String(), refused.Error())
		return
	}
	o.gateway.cfg.Logger.Warn("host cannot be reached", "host", target.String(), "error", err)
	explain(w, http.StatusBadGateway, fmt.Sprintf("%s cannot be reached: %v", target, err))
}

// refuse answers a refused request.
func (o *outward) refuse(w http.ResponseWriter, host, reason string) {
	o.audit(host, reason)
	explain(w, http.StatusForbidden, host+" is refused: "+reason)
}

// audit logs a refusal and calls OnRefused.
func (o *outward) audit(host, reason string) {
	o.gateway.cfg.Logger.Warn("host refused", "host", host, "reason", reason)
	if tell := o.gateway.cfg.OnRefused; tell != nil {
		tell(host, reason)
	}
}

// explain answers with a message for the user, also in a header: most clients do not show the
// body of an answer to CONNECT.
func explain(w http.ResponseWriter, status int, message string) {
	w.Header().Set("X-Agentenv-Reason", message)
	http.Error(w, "agentenv: "+message, status)
}
