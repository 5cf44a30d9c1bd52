package docker_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "an authority of the tests"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}
}

// sign writes cert.pem and key.pem of a new certificate for 127.0.0.1.
func (a authority) sign(t *testing.T, dir string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "127.0.0.1"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, filepath.Join(dir, "cert.pem"), "CERTIFICATE", der)
	writePEM(t, filepath.Join(dir, "key.pem"), "EC PRIVATE KEY", private)
}

// trust writes ca.pem.
func (a authority) trust(t *testing.T, dir string) {
	writePEM(t, filepath.Join(dir, "ca.pem"), "CERTIFICATE", a.cert.Raw)
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	writeFile(t, file, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
}

func writeFile(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// writeContext writes a context of the docker command into its folder and returns
// that of the context's certificates.
func writeContext(t *testing.T, config, name string, endpoint map[string]any) string {
	sum := sha256.Sum256([]byte(name))
	key := hex.EncodeToString(sum[:])
	meta, err := json.Marshal(map[string]any{"Name": name, "Endpoints": map[string]any{"docker": endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(config, "contexts", "meta", key, "meta.json"), string(meta))
	return filepath.Join(config, "contexts", "tls", key, "docker")
}

// cleanEngineEnv has nothing of this machine say where the engine is.
func cleanEngineEnv(t *testing.T) (config string) {
	for _, name := range []string{"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"} {
		t.Setenv(name, "")
	}
	config = t.TempDir()
	t.Setenv("DOCKER_CONFIG", config)
	return config
}

// freeAddress is an address at which nobody listens but who is told it: until the test
// ends the system gives its port to nobody who asks for any.
func freeAddress(t *testing.T) string {
	t.Helper()
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	// Bound, but not listening. Another socket that has this option, too, may do so then.
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	bound, nerr := syscall.Getsockname(fd)
	if err := errors.Join(err, nerr); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port)
}

// TestARefusedCertificateIsKnownAfterTheConnectionIsClosed: of a request one part reads
// that it was refused and closes the connection while another still writes.
func TestARefusedCertificateIsKnownAfterTheConnectionIsClosed(t *testing.T) {
	ca, dir := newAuthority(t), t.TempDir()
	ca.sign(t, dir)
	own, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAnyClientCert,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		conn, err := server.Accept()
		if err == nil {
			_, _ = conn.Read(make([]byte, 1)) // shakes hands, in vain
			_ = conn.Close()
		}
	}()
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	conn, err := docker.DialTLS(t.Context(), server.Addr().String(), &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	_, refused := conn.Read(make([]byte, 1))
	if err := conn.Close(); err != nil {
		t.Log(err) // the other end has closed it, too
	}
	_, err = conn.Write([]byte("x"))
	if refused == nil || err == nil || err.Error() != refused.Error() {
		t.Errorf("the write failed with %v, want %v", err, refused)
	}
}

func TestAnEngineBehindTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	server := t.TempDir()
	ca.trust(t, server)
	ca.sign(t, server)
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	daemon := testdocker.NewDaemon(t, listener, "--tlsverify", "--tlscacert", filepath.Join(server, "ca.pem"),
		"--tlscert", filepath.Join(server, "cert.pem"), "--tlskey", filepath.Join(server, "key.pem"))

	for name, c := range map[string]struct {
		trusted, signer *authority
		verify          bool
		want            error
	}{
		"both know each other":        {&ca, &ca, true, nil},
		"the client does not ask":     {nil, &ca, false, nil},
		"a wrong authority":           {&other, &ca, true, primitives.ErrUnavailable},
		"no certificate":              {&ca, nil, true, fs.ErrPermission},
		"a certificate of no use":     {&ca, &other, true, fs.ErrPermission},
		"no certificate, nobody asks": {nil, nil, false, fs.ErrPermission},
	} {
		certificates := func(t *testing.T, dir string) {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if c.trusted != nil {
				c.trusted.trust(t, dir)
			}
			if c.signer != nil {
				c.signer.sign(t, dir)
			}
		}
		check := func(t *testing.T, host string) {
			t.Helper()
			_, err := docker.List(t.Context(), docker.Config{Host: host})
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if c.want != nil && !errors.Is(err, primitives.ErrUnavailable) {
				t.Errorf("not unavailable: %v", err)
			}
			if _, untrusted := errors.AsType[*tls.CertificateVerificationError](err); untrusted != (c.trusted == &other) {
				t.Errorf("got %v", err)
			}
		}
		t.Run("by the environment: "+name, func(t *testing.T) {
			cleanEngineEnv(t)
			dir := t.TempDir()
			certificates(t, dir)
			t.Setenv("DOCKER_CERT_PATH", dir)
			t.Setenv("DOCKER_TLS", "1")
			if c.verify {
				t.Setenv("DOCKER_TLS_VERIFY", "1")
			}
			check(t, "tcp://"+address)
			t.Setenv("DOCKER_HOST", address) // as the docker command takes it
			check(t, "")
		})
		t.Run("by a context: "+name, func(t *testing.T) {
			config := cleanEngineEnv(t)
			certificates(t, writeContext(t, config, "mine", map[string]any{"Host": "tcp://" + address, "SkipTLSVerify": !c.verify}))
			t.Setenv("DOCKER_CONTEXT", "mine")
			check(t, "")
			t.Setenv("DOCKER_CONTEXT", "")
			writeFile(t, filepath.Join(config, "config.json"), `{"currentContext": "mine"}`)
			check(t, "")
		})
	}

	t.Run("a sandbox", func(t *testing.T) {
		cfg := config(t, testdocker.Busybox(t))
		daemon.Load(t, cfg.Image)
		cleanEngineEnv(t)
		dir := t.TempDir()
		ca.trust(t, dir)
		ca.sign(t, dir)
		t.Setenv("DOCKER_CERT_PATH", dir)
		t.Setenv("DOCKER_TLS_VERIFY", "1")
		cfg.Host = "tcp://" + address
		if got := output(t, open(t, cfg), "echo", "hello"); got != "hello\n" {
			t.Errorf("got %q", got)
		}
	})

	t.Run("spoken to without TLS", func(t *testing.T) {
		cleanEngineEnv(t)
		for _, scheme := range []string{"tcp", "http"} {
			if _, err := docker.List(t.Context(), docker.Config{Host: scheme + "://" + address}); err == nil {
				t.Errorf("%s: no error", scheme)
			} else if !errors.Is(err, primitives.ErrUnavailable) && !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("%s: %v", scheme, err)
			}
		}
	})
}
