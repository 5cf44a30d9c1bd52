package engine_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
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

// One part of a request reads the refusal and closes the connection while another part still
// writes.
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
			_, _ = conn.Read(make([]byte, 1)) // the handshake fails
			_ = conn.Close()
		}
	}()
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	conn, err := engine.DialTLS(t.Context(), server.Addr().String(), &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "127.0.0.1"})
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
			err := ask(t.Context(), host)
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
			testdocker.CleanEnv(t)
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
			config := testdocker.CleanEnv(t)
			certificates(t, testdocker.WriteContext(t, config, "mine", map[string]any{"Host": "tcp://" + address, "SkipTLSVerify": !c.verify}))
			t.Setenv("DOCKER_CONTEXT", "mine")
			check(t, "")
			t.Setenv("DOCKER_CONTEXT", "")
			writeFile(t, filepath.Join(config, "config.json"), `{"currentContext": "mine"}`)
			check(t, "")
		})
	}

	t.Run("a sandbox", func(t *testing.T) {
		cfg := config(t)
		daemon.Load(t, cfg.Image)
		testdocker.CleanEnv(t)
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
		testdocker.CleanEnv(t)
		for _, scheme := range []string{"tcp", "http"} {
			if err := ask(t.Context(), scheme+"://"+address); err == nil {
				t.Errorf("%s: no error", scheme)
			} else if !errors.Is(err, primitives.ErrUnavailable) && !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("%s: %v", scheme, err)
			}
		}
	})
}
