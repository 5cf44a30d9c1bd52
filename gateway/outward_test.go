package gateway

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/egress"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// host serves a handler under a test name, with TLS or without. It listens on loopback, which
// the proxy refuses by rule, so only such names reach it.
func host(t testing.TB, name string, port uint16, secure bool, handler http.HandlerFunc) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	t.Cleanup(egress.AddTestHost(egress.Target{Host: name, Port: port}, server.Listener.Addr().String()))
}

// noHost fails the test if a client connects to the name.
func noHost(t testing.TB, name string, port uint16) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
			t.Errorf("something has connected to %s:%d", name, port)
		}
	}()
	t.Cleanup(egress.AddTestHost(egress.Target{Host: name, Port: port}, l.Addr().String()))
}

// through returns a client that uses the gateway as its proxy, as the agent's environment says.
func through(t testing.TB, at *runnerscripts.Gateway) *http.Client {
	t.Helper()
	proxy, err := url.Parse(at.Variables()["HTTPS_PROXY"])
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the certificate is a test's
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func get(t testing.TB, client *http.Client, address string) (status int, body string, err error) {
	t.Helper()
	resp, err := client.Do(request(t, "GET", address, ""))
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), err
}

// raw sends text to the gateway and returns the connection and a reader of it.
func raw(t testing.TB, at *runnerscripts.Gateway, text string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", at.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

func basic(token string) string {
	return "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("agentenv:"+token)) + "\r\n"
}

// connect requests a tunnel. It returns the status, the reason of a refusal, and the
// connection.
func connect(t testing.TB, at *runnerscripts.Gateway, target, header string) (int, string, net.Conn, *bufio.Reader) {
	t.Helper()
	conn, r := raw(t, at, "CONNECT "+target+" HTTP/1.1\r\nHost: x\r\n"+header+"\r\n")
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return http.StatusBadRequest, "", conn, r // the server could not parse the request
	}
	_ = resp.Body.Close()
	return resp.StatusCode, resp.Header.Get("X-Agentenv-Reason"), conn, r
}

func TestAllowedHostsAreReached(t *testing.T) {
	echo := func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s", r.Method, r.Host, r.RequestURI, data)
		for _, name := range []string{"Proxy-Authorization", "Proxy-Connection", "X-Forwarded-For", "Via", "Forwarded"} {
			if r.Header.Get(name) != "" {
				t.Errorf("the host got %s", name)
			}
		}
	}
	host(t, "plain.test", 80, false, echo)
	host(t, "plain.test", 8080, false, echo)
	host(t, "secure.test", 443, true, echo)
	var refused []string
	_, at := serveConfig(t, Config{AllowHosts: []string{"plain.test", "plain.test:8080", "*.test:443"}, OnRefused: func(host, why string) { refused = append(refused, host+": "+why) }})
	client := through(t, at)
	for address, want := range map[string]string{
		"http://plain.test/a?b=c%2f": "GET plain.test /a?b=c%2f ",
		"http://PLAIN.test.:8080/":   "GET plain.test:8080 / ",
		"https://secure.test/x":      "GET secure.test /x ",
	} {
		if status, body, err := get(t, client, address); err != nil || status != 200 || body != want {
			t.Errorf("%s: %d %q, %v", address, status, body, err)
		}
	}
	resp, err := client.Do(request(t, "POST", "http://plain.test/up", strings.Repeat("x", 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if data, err := io.ReadAll(resp.Body); err != nil || len(data) != len("POST plain.test /up ")+1<<20 {
		t.Errorf("got %d bytes, %v", len(data), err)
	}
	if len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
}

// TestARefusalSaysWhatAllowsIt requests hosts that are not allowed: the gateway sends nothing,
// and the answer says why and what to change.
func TestARefusalSaysWhatAllowsIt(t *testing.T) {
	noHost(t, "other.test", 443)
	noHost(t, "other.test", 80)
	noHost(t, "plain.test", 25)
	told := make(chan string, 16)
	_, at := serveConfig(t, Config{AllowHosts: []string{"plain.test"}, OnRefused: func(host, why string) { told <- host + ": " + why }})
	for target, rule := range map[string]string{"other.test:443": `"other.test"`, "plain.test:25": `"plain.test:25"`, "sub.plain.test:443": `"sub.plain.test"`} {
		status, reason, _, _ := connect(t, at, target, basic(at.Token))
		if status != 403 || !strings.Contains(reason, "add "+rule+" to sandbox.allow_hosts") {
			t.Errorf("%s: %d %s", target, status, reason)
		}
		if message := <-told; !strings.Contains(message, target) || !strings.Contains(message, rule) {
			t.Errorf("%s: told %q", target, message)
		}
	}
	if status, body, err := get(t, through(t, at), "http://other.test/"); err != nil || status != 403 || !strings.Contains(body, `add "other.test" to`) {
		t.Errorf("got %d %s, %v", status, body, err)
	}
}

func TestOnlyTheSessionUsesTheProxy(t *testing.T) {
	noHost(t, "plain.test", 443)
	noHost(t, "plain.test", 80)
	cfg := Config{AllowHosts: []string{"*"}}
	g, at := serveConfig(t, cfg)
	_, elsewhere := serveConfig(t, cfg)
	refused := func(name, header string) {
		t.Helper()
		if status, reason, _, _ := connect(t, at, "plain.test:443", header); status != 407 || strings.Contains(reason, at.Token) {
			t.Errorf("%s: %d %s", name, status, reason)
		}
		if status := sendRaw(t, at, "GET http://plain.test/ HTTP/1.1\r\nHost: plain.test\r\n"+header+"\r\n"); status != 407 {
			t.Errorf("%s: %d", name, status)
		}
	}
	for name, header := range map[string]string{
		"none": "", "of another session": basic(elsewhere.Token), "empty": basic(""), "half": basic(at.Token[:32]), "no Basic": "Proxy-Authorization: " + at.Token + "\r\n",
		"where models have it": "Authorization: Bearer " + at.Token + "\r\nX-Api-Key: " + at.Token + "\r\n", "broken": "Proxy-Authorization: Basic ???\r\n",
		"as the user": "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(at.Token+":")) + "\r\n",
	} {
		refused(name, header)
	}
	g.mu.Lock()
	g.expires = time.Now().Add(-time.Second)
	g.mu.Unlock()
	refused("expired", basic(at.Token))
	g.Renew()
	if err := g.Close(); err != nil || g.admit(at.Token) {
		t.Errorf("revoked: %v", err)
	}
}

// TestNoWayToThisMachineAndItsNetwork allows every host, and requests addresses outside the
// public internet.
func TestNoWayToThisMachineAndItsNetwork(t *testing.T) {
	secret := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a service of this machine was reached") }))
	defer secret.Close()
	_, port, _ := net.SplitHostPort(secret.Listener.Addr().String())
	_, at := serveConfig(t, Config{AllowHosts: []string{"*", "*:" + port}})
	own := strings.TrimPrefix(at.URL, "http://127.0.0.1:")
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	hosts := []string{
		"127.0.0.1", "localhost", "LOCALHOST.", "127.0.0.2", "127.1", "2130706433", "0177.0.0.1", "017700000001", "0x7f000001", "0x7f.1", "0", "0.0.0.0", "127.0.0.1.", name,
		"[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[0:0:0:0:0:ffff:7f00:0001]", "[::1%25lo]", "[fe80::1]",
		"169.254.169.254", "[::ffff:169.254.169.254]", "2852039166", "169.254.43518", "[fd00:ec2::254]", "100.100.100.200", "168.63.129.16", "192.0.0.192", "10.0.0.1", "192.168.0.1", "172.17.0.1",
		"127.0.0.1%2f", "127.0.0.1#", "127.0.0.1?", "plain.test@127.0.0.1", "plain.test:80@127.0.0.1", "127.0.0.1\\@plain.test", "127。0。0。1", "①②⑦.0.0.1",
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok {
			hosts = append(hosts, "["+n.IP.String()+"]")
			if n.IP.To4() != nil {
				hosts[len(hosts)-1] = n.IP.String()
			}
		}
	}
	for _, name := range hosts {
		for _, target := range []string{name + ":" + port, name, name + ":" + port + "/", name + ":" + own, name + ":80"} {
			if status, _, _, _ := connect(t, at, target, basic(at.Token)); status != 403 && status != 400 && status != 502 {
				t.Errorf("CONNECT %s: %d", target, status)
			}
			for _, scheme := range []string{"http://", "https://", "HTTP://", "ftp://", "//"} {
				status := sendRaw(t, at, "GET "+scheme+target+"/latest/meta-data/ HTTP/1.1\r\nHost: plain.test\r\n"+basic(at.Token)+"\r\n")
				if status != 403 && status != 400 && status != 502 && (scheme != "//" || status != 404) {
					t.Errorf("GET %s%s: %d", scheme, target, status)
				}
			}
		}
	}
}

// TestWhatLeadsElsewhereIsAskedForAnew checks that the proxy follows no redirect, and applies
// the rules to the client's next request.
func TestWhatLeadsElsewhereIsAskedForAnew(t *testing.T) {
	host(t, "plain.test", 80, false, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/", http.StatusFound)
	})
	_, at := serveConfig(t, Config{AllowHosts: []string{"*"}})
	client := through(t, at)
	if status, _, err := get(t, client, "http://plain.test/"); err != nil || status != 302 {
		t.Errorf("got %d, %v", status, err)
	}
	client.CheckRedirect = nil
	if status, body, err := get(t, client, "http://plain.test/"); err != nil || status != 403 || !strings.Contains(body, "link-local") {
		t.Errorf("got %d %s, %v", status, body, err)
	}
}

// TestATunnelIsForTLSToItsHost sends data that a tunnel must not carry.
func TestATunnelIsForTLSToItsHost(t *testing.T) {
	got := make(chan string, 16)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			data, _ := io.ReadAll(conn)
			_ = conn.Close()
			got <- string(data)
		}
	}()
	defer egress.AddTestHost(egress.Target{Host: "secure.test", Port: 443}, l.Addr().String())()
	told := make(chan string, 16)
	g, at := serveConfig(t, Config{AllowHosts: []string{"secure.test"}, OnRefused: func(host, why string) { told <- host + ": " + why }})
	open := func() (net.Conn, *bufio.Reader) {
		t.Helper()
		status, reason, conn, r := connect(t, at, "secure.test:443", basic(at.Token))
		if status != 200 {
			t.Fatalf("got %d %s", status, reason)
		}
		return conn, r
	}
	for _, name := range []string{"other.test", "", "secure.test.evil.test"} {
		conn, _ := open()
		err := tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true}).HandshakeContext(t.Context()) //nolint:gosec // it has no other side
		if alert, ok := errors.AsType[tls.AlertError](err); !ok && !strings.Contains(fmt.Sprint(err), "unrecognized name") {
			t.Errorf("%q: %v, %v", name, err, alert)
		}
		if data, message := <-got, <-told; data != "" || !strings.Contains(message, "SNI") {
			t.Errorf("%q: the host got %q, told %q", name, data, message)
		}
	}
	conn, r := open()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: secure.test\r\n\r\n")
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 403 || !strings.Contains(string(body), "not TLS") || <-got != "" {
		t.Errorf("plain HTTP: %d %s", resp.StatusCode, body)
	}
	<-told
	// A client that disconnects, one that sends nothing, and one that sends too slowly.
	conn, _ = open()
	_ = conn.Close()
	if data := <-got; data != "" {
		t.Errorf("the host got %q", data)
	}
	g.outward.helloTimeout = time.Millisecond
	for _, first := range []string{"", "\x16\x03\x01"} {
		// The time may be over before the answer is sent: then there is none.
		status, reason, conn, r := connect(t, at, "secure.test:443", basic(at.Token))
		if status != 200 && reason != "" {
			t.Fatalf("got %d %s", status, reason)
		}
		_, _ = io.WriteString(conn, first)
		if _, err := r.ReadByte(); err == nil || <-got != "" {
			t.Errorf("a client that waits: %v", err)
		}
	}
}

// TestRequestsThatTwoServersCouldReadInTwoWays checks that the host gets a single request, to
// the host that was allowed.
func TestRequestsThatTwoServersCouldReadInTwoWays(t *testing.T) {
	host(t, "plain.test", 80, false, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		if r.Host != "plain.test" || strings.HasPrefix(r.URL.Path, "/smuggled") || r.Header.Get("X-Injected") != "" {
			t.Errorf("the host got %s %s %s %v %q", r.Method, r.Host, r.URL, r.Header, data)
		}
	})
	_, at := serveConfig(t, Config{AllowHosts: []string{"plain.test"}})
	const smuggled = "GET /smuggled HTTP/1.1\r\nHost: plain.test\r\n\r\n"
	for name, raw := range map[string]string{
		"another Host":        "GET http://plain.test/ HTTP/1.1\r\nHost: 169.254.169.254\r\n%s\r\n",
		"two Hosts":           "GET http://plain.test/ HTTP/1.1\r\nHost: plain.test\r\nHost: other.test\r\n%s\r\n",
		"no Host":             "GET http://plain.test/ HTTP/1.1\r\n%s\r\n",
		"two lengths":         "POST http://plain.test/ HTTP/1.1\r\nHost: x\r\n%sContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}" + smuggled,
		"length and chunks":   "POST http://plain.test/ HTTP/1.1\r\nHost: x\r\n%sContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
		"another encoding":    "POST http://plain.test/ HTTP/1.1\r\nHost: x\r\n%sTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + smuggled,
		"a space":             "POST http://plain.test/ HTTP/1.1\r\nHost: x\r\n%sTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + smuggled,
		"a line feed":         "GET http://plain.test/ HTTP/1.1\r\nHost: x\r\n%sX-A: b\rX-Injected: c\r\n\r\n",
		"a folded header":     "GET http://plain.test/ HTTP/1.1\r\nHost: x\r\n%sX-A: b\r\n X-Injected: c\r\n\r\n",
		"a header in a path":  "GET http://plain.test/%%0d%%0aX-Injected:%%20c HTTP/1.1\r\nHost: x\r\n%s\r\n",
		"a header in a host":  "GET http://plain.test%%0d%%0aX-Injected:c/ HTTP/1.1\r\nHost: x\r\n%s\r\n",
		"an upgrade":          "GET http://plain.test/ HTTP/1.1\r\nHost: x\r\n%sConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"a CONNECT with body": "CONNECT plain.test:80 HTTP/1.1\r\nHost: x\r\n%sContent-Length: 9\r\n\r\n" + smuggled,
		"a chunked CONNECT":   "CONNECT plain.test:80 HTTP/1.1\r\nHost: x\r\n%sTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
		"a CONNECT to a path": "CONNECT /smuggled HTTP/1.1\r\nHost: plain.test:80\r\n%s\r\n",
		"a large header":      "GET http://plain.test/ HTTP/1.1\r\nHost: x\r\n%sX-A: " + strings.Repeat("a", maxHeader+8192) + "\r\n\r\n",
		"HTTP/0.9":            "GET http://plain.test/\r\n%s\r\n",
	} {
		status := sendRaw(t, at, fmt.Sprintf(raw, basic(at.Token)))
		if fine := map[string]bool{"another Host": true, "length and chunks": true, "a folded header": true, "a header in a path": true, "an upgrade": true}; (status == 200) != fine[name] {
			t.Errorf("%s: %d", name, status)
		}
	}
}
