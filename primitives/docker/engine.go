package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/docker/client"
	"github.com/docker/go-connections/tlsconfig"
)

// connect returns a client of the engine. It does not contact it yet.
func connect(host string) (*client.Client, error) {
	opts, err := engineOptions(host)
	if err != nil {
		return nil, err
	}
	eng, err := client.NewClientWithOpts(append(opts, client.WithAPIVersionNegotiation(), withoutIdle)...)
	if err != nil {
		return nil, fmt.Errorf("%w: address of the Docker engine: %w", fs.ErrInvalid, err)
	}
	return eng, nil
}

// withoutIdle closes each connection after its use. Sandboxes rarely talk to the
// engine; connections that idle would cost every one of them files and goroutines.
func withoutIdle(eng *client.Client) error {
	if t, ok := eng.HTTPClient().Transport.(*http.Transport); ok {
		t.DisableKeepAlives = true
	}
	return nil
}

// engineOptions looks for the engine in the order in which the docker command
// does.
func engineOptions(host string) ([]client.Opt, error) {
	if host == "" {
		host = os.Getenv(client.EnvOverrideHost)
	}
	if host != "" {
		if err := checkScheme(host); err != nil {
			return nil, err
		}
		return []client.Opt{client.WithTLSClientConfigFromEnv(), client.WithHost(host), client.WithVersionFromEnv()}, nil
	}
	dir, err := configDir()
	if err != nil {
		return []client.Opt{client.FromEnv}, nil //nolint:nilerr // no home, no configuration
	}
	name := os.Getenv("DOCKER_CONTEXT")
	if name == "" {
		var cfg struct {
			CurrentContext string `json:"currentContext"`
		}
		if err := readJSON(filepath.Join(dir, "config.json"), &cfg); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		name = cfg.CurrentContext
	}
	if name == "" || name == "default" {
		return []client.Opt{client.FromEnv}, nil
	}
	return contextOptions(dir, name)
}

func configDir() (string, error) {
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".docker"), nil
}

// contextOptions reads a context of the docker command. They are stored in
// folders named by the digest of the context's name.
func contextOptions(dir, name string) ([]client.Opt, error) {
	sum := sha256.Sum256([]byte(name))
	key := hex.EncodeToString(sum[:])
	var meta struct {
		Endpoints map[string]struct {
			Host          string
			SkipTLSVerify bool
		}
	}
	if err := readJSON(filepath.Join(dir, "contexts", "meta", key, "meta.json"), &meta); err != nil {
		return nil, fmt.Errorf("choose another Docker context than %q (docker context ls): %w", name, err)
	}
	endpoint := meta.Endpoints["docker"]
	if err := checkScheme(endpoint.Host); err != nil {
		return nil, fmt.Errorf("docker context %q: %w", name, err)
	}
	var opts []client.Opt
	tls := filepath.Join(dir, "contexts", "tls", key, "docker")
	if _, err := os.Stat(tls); err == nil {
		config, err := tlsconfig.Client(tlsconfig.Options{
			CAFile: existing(tls, "ca.pem"), CertFile: existing(tls, "cert.pem"), KeyFile: existing(tls, "key.pem"),
			InsecureSkipVerify: endpoint.SkipTLSVerify, ExclusiveRootPools: true,
		})
		if err != nil {
			return nil, fmt.Errorf("docker context %q: %w", name, err)
		}
		// Like the engine's client: certificates first, then the host.
		opts = append(opts, client.WithHTTPClient(&http.Client{Transport: &http.Transport{TLSClientConfig: config}}))
	}
	return append(opts, client.WithHost(endpoint.Host), client.WithVersionFromEnv()), nil
}

// existing returns the path of a file, or nothing if it does not exist.
func existing(dir, name string) string {
	file := filepath.Join(dir, name)
	if _, err := os.Stat(file); err != nil {
		return ""
	}
	return file
}

// checkScheme refuses addresses that the engine's client would misunderstand.
func checkScheme(host string) error {
	scheme, _, _ := strings.Cut(host, "://")
	switch scheme {
	case "unix", "tcp", "http", "https", "npipe":
		return nil
	case "ssh":
		return fmt.Errorf("%w: forward the socket (ssh -L /tmp/docker.sock:/var/run/docker.sock) and use its unix:// address: engines are not reached by ssh yet", errors.ErrUnsupported)
	}
	return fmt.Errorf("%w: write the address of the Docker engine as unix:///path or tcp://host:port, not %q", fs.ErrInvalid, host)
}

func readJSON(file string, v any) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}
