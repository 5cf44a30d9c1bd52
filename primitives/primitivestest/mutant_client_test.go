package primitivestest

import (
	"bufio"
	"context"
	"net"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// TestMutantsOfKilledPrograms checks that the suite notices what another program leaves when it
// is killed. The mutants start commands with a supervisor, which outlives the program.
func TestMutantsOfKilledPrograms(t *testing.T) {
	prepareHost(t)
	const good = "nothing lives on"
	const name = "a killed program takes its commands and listeners along, not those of others"
	for _, m := range []struct {
		name     string
		outlives func(cmd primitives.Command) bool
		says     string
	}{
		{good, func(primitives.Command) bool { return false }, ""},
		{"all that a killed program started lives on", func(primitives.Command) bool { return true }, inVain + ": processes live on"},
		{"a process that leaves its parent lives on", func(cmd primitives.Command) bool { return slices.Contains(cmd.Args, "spawn") }, inVain + ": processes live on"},
		{"its listeners live on", nil, inVain + ": the listener of the killed program"},
	} {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			h := Harness{
				Open: func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error) {
					self, err := os.Executable()
					if err != nil {
						return nil, err
					}
					p, err := local.New(ctx, local.Config{Root: dir, Runner: self})
					if err != nil {
						return nil, err
					}
					t.Cleanup(func() { endLocal(t, dir, p) })
					return p, nil
				},
				Attach: func(ctx context.Context, dir, id string) (primitives.EnvironmentPrimitive, error) {
					p, err := local.Attach(ctx, local.Config{Root: dir}, id)
					if err != nil {
						return nil, err
					}
					f := whole(p)
					f.exec = func(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
						cmd.Durable = m.outlives != nil && m.outlives(cmd)
						return p.Exec(ctx, cmd)
					}
					if m.outlives == nil {
						f.listen = func(ctx context.Context, network, address string) (net.Listener, error) {
							return durableListener(ctx, p, network, address)
						}
					}
					return wrapped{f}, nil
				},
			}
			if runAsClient(t, h) || m.name == good {
				return
			}
			t.Parallel()
			control := suiteOf(t, h)
			control.self = "TestMutantsOfKilledPrograms/" + strings.ReplaceAll(good, " ", "_")
			expectKilled(t, name, m.says, control, suiteOf(t, h))
		})
	}
}

// listenerAt is a listener of another process.
type listenerAt struct {
	net.Listener
	at net.Addr
}

func (l listenerAt) Addr() net.Addr { return l.at }

// durableListener starts a process that listens and outlives the program.
func durableListener(ctx context.Context, p primitives.EnvironmentPrimitive, network, address string) (net.Listener, error) {
	proc, err := p.Exec(ctx, primitives.Command{Args: []string{path.Join(p.Paths().App, "probe"), "serve", network, address}, Durable: true})
	if err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(proc.Stdout()).ReadString('\n')
	if err != nil {
		return nil, err
	}
	at, err := net.ResolveTCPAddr(network, strings.TrimSpace(line))
	return listenerAt{at: at}, err
}
