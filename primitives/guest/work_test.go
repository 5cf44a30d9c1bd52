package guest

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// workCounter counts the calls of ServeConfig.Work.
type workCounter struct {
	mu           sync.Mutex
	little, much int
}

func (w *workCounter) tell(much bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if much {
		w.much++
	} else {
		w.little++
	}
}

func (w *workCounter) told() (little, much int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.little, w.much
}

// connectWorking is connect with a guest that reports its work.
func connectWorking(t *testing.T) (*Sandbox, *workCounter) {
	t.Helper()
	host, guest := net.Pipe()
	work, served := &workCounter{}, make(chan error, 1)
	go func() {
		served <- Serve(context.WithoutCancel(t.Context()), guest, newFake(t), ServeConfig{Work: work.tell})
	}()
	c, err := Dial(t.Context(), host, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := within(t, served); err != nil {
			t.Error(err)
		}
	})
	return c, work
}

func TestOneCommandIsLittleWork(t *testing.T) {
	c, work := connectWorking(t)
	if little, much := work.told(); little != 0 || much != 0 {
		t.Errorf("before the first command: %d calls say little work, %d much", little, much)
	}
	p, err := c.Exec(t.Context(), primitives.Command{Args: []string{"sh", "-c", "echo out; echo err >&2"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, output := range []io.Reader{p.Stdout(), p.Stderr()} {
		if _, err := io.ReadAll(output); err != nil {
			t.Error(err)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	noStreams(t, c) // otherwise the answered command may still overlap with the next one
	// Output is little work, too, however much it is.
	if _, err := primitives.Run(t.Context(), c, primitives.Command{Args: []string{"head", "-c", "1000000", "/dev/zero"}}, primitives.RunOptions{}); err != nil {
		t.Error(err)
	}
	if little, much := work.told(); little == 0 || much != 0 {
		t.Errorf("%d calls say little work, %d much", little, much)
	}
}

func TestMuchWorkIsReported(t *testing.T) {
	large := strings.Repeat("x", 4*smallBody)
	for name, do := range map[string]func(c *Sandbox) error{
		"tree of files": func(c *Sandbox) error {
			_, err := c.Watch(t.Context(), ".", primitives.WatchOptions{})
			return err
		},
		"large input": func(c *Sandbox) error {
			return c.WriteFile(t.Context(), "f", strings.NewReader(large), primitives.WriteOptions{})
		},
		"often two at once": func(c *Sandbox) error {
			p, err := c.Exec(t.Context(), primitives.Command{Args: []string{"cat"}, Stdin: true})
			if err != nil {
				return err
			}
			defer p.Close()
			for range oftenCrowded {
				if _, err := c.Poll(t.Context()); err != nil {
					return err
				}
			}
			return nil
		},
		"several commands": func(c *Sandbox) error {
			for range 3 {
				p, err := c.Exec(t.Context(), primitives.Command{Args: []string{"cat"}, Stdin: true})
				if err != nil {
					return err
				}
				defer p.Close()
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, work := connectWorking(t)
			if err := do(c); err != nil {
				t.Fatal(err)
			}
			if _, much := work.told(); much == 0 {
				t.Error("no call says much work")
			}
		})
	}
}
