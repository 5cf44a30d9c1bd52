package environment

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // npm's registry has it
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/egress"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// certificate returns a certificate for the names, and that of its authority.
func certificate(t *testing.T, names ...string) (cert tls.Certificate, authority []byte) {
	t.Helper()
	issue := func(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			signer = key
		}
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		return der, key
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "agentenv test"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	rootDER, rootKey := issue(root, root, nil)
	der, key := issue(&x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, root, rootKey)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: rootDER})
}

// publish serves a handler under a host name of the tests. The handler listens on loopback,
// which the proxy would refuse.
func publish(t *testing.T, name string, port uint16, cert *tls.Certificate, handler http.Handler) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if cert == nil {
		server.Start()
	} else {
		server.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}}
		server.StartTLS()
	}
	t.Cleanup(server.Close)
	t.Cleanup(egress.AddTestHost(egress.Target{Host: name, Port: port}, server.Listener.Addr().String()))
}

// registry returns an npm registry with the package "left".
func registry(t *testing.T, address string) http.Handler {
	t.Helper()
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	archive := tar.NewWriter(zipped)
	for name, content := range map[string]string{"package/package.json": `{"name":"left","version":"1.0.0"}`, "package/index.js": "module.exports = 'left is here'\n"} {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(archive, content)
	}
	if err := errors.Join(archive.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	sum := sha1.Sum(packed.Bytes()) //nolint:gosec // npm's registry has it
	mux := http.NewServeMux()
	mux.HandleFunc("GET /left", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"name":"left","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"left","version":"1.0.0","dist":{"tarball":"%s/left/-/left-1.0.0.tgz","shasum":"%s"}}}}`, address, hex.EncodeToString(sum[:]))
	})
	mux.HandleFunc("GET /left/-/left-1.0.0.tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(packed.Bytes()) })
	return mux
}

// index returns a pip index with the package "right".
func index(t *testing.T) http.Handler {
	t.Helper()
	const name, info = "right-1.0-py3-none-any.whl", "right-1.0.dist-info/"
	var wheel bytes.Buffer
	archive := zip.NewWriter(&wheel)
	for file, content := range map[string]string{
		"right.py": "text = 'right is here'\n", info + "METADATA": "Metadata-Version: 2.1\nName: right\nVersion: 1.0\n",
		info + "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n", info + "RECORD": "",
	} {
		w, err := archive.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(w, content)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /simple/right/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!DOCTYPE html><html><body><a href="/files/%[1]s">%[1]s</a></body></html>`, name)
	})
	mux.HandleFunc("GET /files/"+name, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(wheel.Bytes()) })
	return mux
}

// gitServer returns a git server with one file, as git itself serves it.
func gitServer(t *testing.T) http.Handler {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "sh", "-ec", `cd "$0"; git init -q work; cd work; echo cloned >file; git add file
git -c user.name=t -c user.email=t@example.com commit -qm one; git clone -q --bare . ../one.git; git --exec-path`, dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"), Root: "/",
		Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1"},
	}
}

// withPrograms returns the configuration of a container without a network that has these
// programs of this machine: git, npm, pip and curl.
func withPrograms(t *testing.T) Config {
	t.Helper()
	cfg := inContainer(t, testdocker.Debian(t))
	cfg.Agent = Agent{}
	cfg.Sandbox = withBlock(cfg.Sandbox, func(p *docker.Provider) { p.Mounts = []docker.Mount{{Source: "/usr", Target: "/usr", ReadOnly: true}} })
	return cfg
}

// TestAllowedHostsInAContainer uses npm, pip, git and curl in a container without a network.
func TestAllowedHostsInAContainer(t *testing.T) {
	cert, trusted := certificate(t, "registry.agentenv.test", "index.agentenv.test", "git.agentenv.test", "other.agentenv.test")
	publish(t, "registry.agentenv.test", 443, &cert, registry(t, "https://registry.agentenv.test"))
	publish(t, "index.agentenv.test", 443, &cert, index(t))
	publish(t, "git.agentenv.test", 443, &cert, gitServer(t))
	publish(t, "git.agentenv.test", 80, nil, gitServer(t))
	publish(t, "files.agentenv.test", 80, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "a file: "+r.URL.Path) }))
	publish(t, "other.agentenv.test", 443, &cert, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a host was reached that is not allowed") }))
	cfg := withPrograms(t)
	cfg.Sandbox.AllowHosts = []string{"registry.agentenv.test", "index.agentenv.test", "git.agentenv.test", "files.agentenv.test"}
	env := create(t, cfg)
	if err := env.Primitive().WriteFile(t.Context(), "ca.pem", bytes.NewReader(trusted), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	const trust = `export GIT_SSL_CAINFO=$PWD/ca.pem CURL_CA_BUNDLE=$PWD/ca.pem npm_config_cafile=$PWD/ca.pem HOME=$PWD npm_config_audit=false npm_config_update_notifier=false npm_config_fetch_retries=0` +
		` PIP_CERT=$PWD/ca.pem PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_RETRIES=1; `
	for _, c := range []struct{ command, want string }{
		{"npm install --registry https://registry.agentenv.test left >npm.log 2>&1 || { cat npm.log; exit 1; }; node -p 'require(\"left\")'", "left is here"},
		{"/usr/bin/pip3 install -q --root-user-action=ignore --target py --index-url https://index.agentenv.test/simple right && PYTHONPATH=py /usr/bin/python3 -c 'import right; print(right.text)'", "right is here"},
		{"git clone -q https://git.agentenv.test/one.git secure && cat secure/file", "cloned"},
		{"git clone -q http://git.agentenv.test/one.git plain && cat plain/file", "cloned"},
		{"curl -sS --fail http://files.agentenv.test/x", "a file: /x"},
		{"ls /sys/class/net", "lo"},
	} {
		if out, err := env.Exec(t.Context(), "sh", "-c", trust+c.command); err != nil || strings.TrimSpace(out) != c.want {
			t.Errorf("%s: %q, %v", c.command, out, err)
		}
	}
	for _, c := range []struct{ command, want string }{
		{"curl -sS https://other.agentenv.test/", "403"},
		{"curl -sSv https://other.agentenv.test/", `add "other.agentenv.test" to sandbox.allow_hosts`},
		{"curl -sS --fail-with-body http://other.agentenv.test/", `add "other.agentenv.test" to sandbox.allow_hosts`},
		{"git clone -q https://other.agentenv.test/one.git", "403"},
		{"/usr/bin/pip3 install --target py --index-url https://other.agentenv.test/simple wrong", "403"},
		{"npm view --registry https://other.agentenv.test left", "403"},
		{"curl -sS --proxy http://" + env.gate.At.Address() + " https://git.agentenv.test/", "407"}, // without the token
		{"curl -sS --noproxy '*' https://git.agentenv.test/", "resolve host"},
	} {
		if out, err := env.Exec(t.Context(), "sh", "-c", trust+c.command); err == nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %q, %v", c.command, out, err)
		}
	}
}

// TestTenThousandConnectionsOfASandbox checks that they block neither the gateway of another
// sandbox nor, once they are closed, that of this one.
func TestTenThousandConnectionsOfASandbox(t *testing.T) {
	publish(t, "files.agentenv.test", 80, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a file") }))
	cfg := withPrograms(t)
	cfg.Sandbox.AllowHosts = []string{"files.agentenv.test"}
	hostile, other := create(t, cfg), create(t, cfg)
	reaches := func(env *Environment) error {
		out, err := env.Exec(t.Context(), "curl", "-sS", "--max-time", "60", "--retry", "5", "--retry-all-errors", "http://files.agentenv.test/")
		if err == nil && out != "a file" {
			err = fmt.Errorf("got %q", out)
		}
		return err
	}
	const flood = `import resource, socket, sys
host, port = sys.argv[1].split(":")
resource.setrlimit(resource.RLIMIT_NOFILE, (11000, 11000))
held = []
for i in range(10000):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex((host, int(port)))
    held.append(s)
for s in held:
    try:
        s.send(b"CONNECT ")
    except OSError:
        pass # not accepted so far
print("open", flush=True)
sys.stdin.read()`
	p, err := hostile.Primitive().Exec(t.Context(), primitives.Command{
		Args: []string{"/usr/bin/python3", "-c", flood, hostile.gate.At.Address()}, Stdin: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if line, err := bufio.NewReader(p.Stdout()).ReadString('\n'); line != "open\n" {
		text, _ := io.ReadAll(p.Stderr())
		t.Fatalf("the connections were not opened: %q, %v: %s", line, err, text)
	}
	if err := reaches(other); err != nil {
		t.Errorf("another sandbox, meanwhile: %v", err)
	}
	_ = p.Stdin().Close()
	if _, err := p.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if err := reaches(hostile); err != nil {
		t.Errorf("the sandbox, afterwards: %v", err)
	}
}

// TestTheAgentIsToldWhatIsRefused checks that the agent uses the proxy too, that an event
// reports a refusal, and that rules change while the agent runs.
func TestTheAgentIsToldWhatIsRefused(t *testing.T) {
	publish(t, "files.agentenv.test", 80, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a file") }))
	cfg := withPrograms(t)
	cfg.Agent = playing(t, "curl -sS http://files.agentenv.test/ http://files.agentenv.test/")
	cfg.Sandbox.AllowHosts = []string{}
	env := create(t, cfg)
	for i, hosts := range [][]string{{}, {"files.agentenv.test"}, nil} {
		if err := env.SetAllowHosts(hosts); err != nil {
			t.Fatal(err)
		}
		events, err := collect(t.Context(), env, Query{Prompt: "fetch"})
		if err != nil {
			t.Fatal(err)
		}
		var told []string
		var said strings.Builder
		for _, ev := range events {
			if v, ok := ev.Value().(*runnerscripts.Log); ok && ev.Source == runnerscripts.SourceEnvironment {
				told = append(told, v.Message)
			}
			said.Write(ev.Payload)
		}
		if len(hosts) > 0 {
			if len(told) > 0 || !strings.Contains(said.String(), "a filea file") {
				t.Errorf("query %d: told %q, %s", i, told, said.String())
			}
			continue
		}
		if want := `add "files.agentenv.test" to sandbox.allow_hosts`; len(told) != 1 || !strings.Contains(told[0], want) || events[len(events)-1].Type != runnerscripts.TypeQueryCompleted {
			t.Errorf("query %d: told %q", i, told)
		}
	}
	if err := env.SetAllowHosts([]string{"10.0.0.1"}); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "sandbox.allow_hosts[0]") {
		t.Errorf("got %v", err)
	}
}

// TestToolsLearnWhichHostsAreAllowed checks that agents which are started later can be held to a list that has changed.
func TestToolsLearnWhichHostsAreAllowed(t *testing.T) {
	tools := &noted{Handler: http.NotFoundHandler()}
	cfg := withPrograms(t)
	cfg.Agent, cfg.Sandbox.AllowHosts = Agent{Name: "command", Command: []string{"cat"}}, []string{}
	cfg.Delegation = Delegation{Agents: map[string]Delegate{"a": {Config: writeConfig(t, "agent: script\n")}}}
	cfg.AgentTools = func(context.Context, Delegator) (AgentTools, error) { return tools, nil }
	env := create(t, cfg)
	if err := env.SetAllowHosts([]string{"10.0.0.1"}); err == nil {
		t.Error("a wrong list is set")
	}
	if err := env.SetAllowHosts([]string{"a.test"}); err != nil || !slices.Equal(tools.calls, []string{"[a.test]"}) {
		t.Errorf("the tools got %q, %v", tools.calls, err)
	}
}

// playing returns a demo agent that runs a shell command.
func playing(t *testing.T, command string) Agent {
	t.Helper()
	return scenario(t, turn(runnerscripts.ScenarioStep{Run: []string{"sh", "-c", command}}))
}

// TestAllowedHostsOfASandboxThatIsKept checks that the hosts are stored, including those of
// SetAllowHosts. The next program serves the proxy for commands that still run.
func TestAllowedHostsOfASandboxThatIsKept(t *testing.T) {
	publish(t, "files.agentenv.test", 80, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a file") }))
	cfg := withPrograms(t)
	box := cfg.Sandbox
	cfg.Sandbox = toKeep(box)
	cfg.Sandbox.AllowHosts = []string{}
	env := create(t, cfg)
	t.Cleanup(func() { _ = Remove(context.WithoutCancel(t.Context()), box, env.ID()) })
	variables := env.GatewayEnv()
	if err := errors.Join(env.SetAllowHosts([]string{"files.agentenv.test"}), env.Close()); err != nil {
		t.Fatal(err)
	}
	again, err := Attach(t.Context(), Config{Sandbox: Sandbox{Type: "docker"}}, env.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if now := again.GatewayEnv(); !slices.Equal(now, variables) {
		t.Errorf("the proxy is at %d variables, and was at %d", len(now), len(variables)) // without the token
	}
	if out, err := again.Exec(t.Context(), "curl", "-sS", "http://files.agentenv.test/"); err != nil || out != "a file" {
		t.Errorf("got %q, %v", out, err)
	}
	if policy := again.cfg.modelPolicy(); len(policy.ProviderTools) > 0 {
		t.Errorf("without a network, the API's own tools are allowed: %v", policy)
	}
	beside, err := Attach(t.Context(), Config{Sandbox: Sandbox{Type: "docker"}}, env.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer beside.Close()
	if out, err := beside.Exec(t.Context(), "curl", "-sS", "http://files.agentenv.test/"); err != nil || out != "a file" {
		t.Errorf("beside another program: %q, %v", out, err)
	}
}

func TestAllowHostsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]error{
		"sandbox: {type: docker, allow_hosts: [example.com]}":                              ErrConfig,
		"sandbox: {type: docker, network: bridge, allow_hosts: [example.com]}":             ErrConfig,
		"sandbox: {type: docker, network: none, allow_hosts: [\"https://example.com\"]}":   ErrConfig,
		"sandbox: {type: docker, network: none, allow_hosts: [127.0.0.1]}":                 ErrConfig,
		"sandbox: {type: modal, network: none, allow_hosts: [example.com, \"*.b.c:443\"]}": nil,
		"sandbox: {type: docker, network: none, allow_hosts: []}":                          nil,
	} {
		cfg, err := ParseConfig([]byte(text))
		if !errors.Is(err, want) || err != nil && !strings.Contains(err.Error(), "sandbox.allow_hosts") || err == nil && cfg.Sandbox.AllowHosts == nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	box := sandbox(t)
	box.Network, box.AllowHosts = "none", []string{"example.com"}
	if _, err := Create(t.Context(), Config{Sandbox: box}); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "sandbox.network") {
		t.Errorf("a local sandbox: %v", err)
	}
	if env := create(t, Config{}); env.GatewayEnv() != nil || !errors.Is(env.SetAllowHosts(nil), errors.ErrUnsupported) {
		t.Errorf("without hosts: %q", env.GatewayEnv())
	}
}

// TestAllowedHostsAtModal uses the same proxy through Modal's protocol.
func TestAllowedHostsAtModal(t *testing.T) {
	publish(t, "files.agentenv.test", 80, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "a file: "+r.URL.Path) }))
	cfg := Config{Sandbox: atModal(t)}
	cfg.Sandbox.Network, cfg.Sandbox.AllowHosts = "none", []string{"files.agentenv.test"}
	env := create(t, cfg)
	if out, err := env.Exec(t.Context(), "curl", "-sS", "--fail", "http://files.agentenv.test/x"); err != nil || out != "a file: /x" {
		t.Errorf("an allowed host: %q, %v", out, err)
	}
	if out, err := env.Exec(t.Context(), "curl", "-sS", "--fail-with-body", "http://other.agentenv.test/"); err == nil || !strings.Contains(out, `add "other.agentenv.test" to sandbox.allow_hosts`) {
		t.Errorf("a host that is not allowed: %q, %v", out, err)
	}
	if out, err := env.Exec(t.Context(), "curl", "-sS", "-w", " %{http_code}", "--proxy", "http://"+env.gate.At.Address(), "http://files.agentenv.test/x"); err != nil || !strings.HasSuffix(out, " 407") || strings.Contains(out, "a file") {
		t.Errorf("without the token: %q, %v", out, err)
	}
}
