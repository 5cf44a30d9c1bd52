package remote_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/sessiontest"
)

// faulty is a proxy between a client and a server. It delays connections, so that they come in another order, and breaks many
// of them after some bytes, in the middle of a request or an answer.
type faulty struct {
	t      *testing.T
	target string
	often  int // one of so many connections is broken
	most   int // bytes until then
	cuts   atomic.Int64

	mu    sync.Mutex
	dice  *rand.Rand
	conns map[net.Conn]struct{}
	ended bool
	all   sync.WaitGroup
}

// breaking starts a proxy before a server, and returns it and its address.
func breaking(t *testing.T, server string, often, most int) (*faulty, string) {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	f := &faulty{t: t, target: u.Host, often: often, most: most, dice: rand.New(rand.NewPCG(seed, 0)), conns: make(map[net.Conn]struct{})}
	f.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.all.Go(func() { f.serve(c) })
		}
	})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		f.mu.Lock()
		f.ended = true
		for c := range f.conns {
			c.Close()
		}
		f.mu.Unlock()
		f.all.Wait()
	})
	return f, "http://" + l.Addr().String()
}

// roll returns a number below n.
func (f *faulty) roll(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dice.IntN(n)
}

// keep remembers a connection, so that it ends with the proxy. It reports whether the proxy goes on.
func (f *faulty) keep(c net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns[c] = struct{}{}
	return !f.ended
}

func (f *faulty) serve(c net.Conn) {
	defer c.Close()
	<-time.After(time.Duration(f.roll(3)) * time.Millisecond)
	up, err := net.Dial("tcp", f.target)
	if err != nil {
		return // the server has ended
	}
	defer up.Close()
	if !f.keep(c) || !f.keep(up) {
		return
	}
	budget := atomic.Int64{}
	budget.Store(1 << 62)
	if f.roll(f.often) == 0 {
		budget.Store(int64(1 + f.roll(f.most)))
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{c, up}, {up, c}} {
		both.Go(func() {
			if _, err := io.Copy(&limited{way[1], &budget}, way[0]); errors.Is(err, errCut) {
				f.cuts.Add(1)
			}
			c.Close()
			up.Close()
		})
	}
	both.Wait()
}

var errCut = errors.New("the proxy cuts the connection")

// limited writes no more bytes than the budget has.
type limited struct {
	net.Conn
	budget *atomic.Int64
}

func (l *limited) Write(p []byte) (int, error) {
	left := l.budget.Add(-int64(len(p)))
	if left >= 0 {
		return l.Conn.Write(p)
	}
	n, err := l.Conn.Write(p[:max(0, int64(len(p))+left)])
	return n, errors.Join(errCut, err)
}

// ReadFrom would bypass Write.
func (l *limited) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{l}, r)
}

// Every change is made once, and every event comes once, whatever breaks.
func TestTheContractHoldsWhereConnectionsBreak(t *testing.T) {
	var cuts atomic.Int64
	t.Run("suite", func(t *testing.T) {
		sessiontest.Run(t, overServer(func(t *testing.T, url string) string {
			f, address := breaking(t, url, 2, 2000)
			t.Cleanup(func() { cuts.Add(f.cuts.Load()) })
			return address
		}))
	})
	t.Logf("%d connections were cut", cuts.Load())
	if cuts.Load() < 100 { // about 200
		t.Errorf("%d connections were cut, want at least 100", cuts.Load())
	}
}

// One reader follows a session over a connection that always breaks.
func TestNoEventIsLostWhereConnectionsBreak(t *testing.T) {
	h := overServer(nil)
	env := h.Environment(t)
	address := serve(t, rootOf(t))
	f, broken := breaking(t, address, 1, 4000)
	const said = 1500
	env.Agent = environment.Agent{Name: "script", Config: []byte(`{"turns":[{"steps":[` +
		strings.TrimSuffix(strings.Repeat(`{"text":"a word and more"},`, said), ",") + `]}]}`)}
	s, err := client(t, address).Create(t.Context(), session.Config{Environment: env})
	if err != nil {
		t.Fatal(err)
	}
	turn, err := s.Prompt(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	across, err := client(t, broken).Open(t.Context(), s.ID())
	if err != nil {
		t.Fatal(err)
	}
	var last uint64
	for ev, err := range across.Events(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Seq != last+1 {
			t.Fatalf("after event %d comes %d", last, ev.Seq)
		}
		if last = ev.Seq; ev.QueryID == turn.ID() && ev.Type == runnerscripts.TypeQueryCompleted {
			break
		}
	}
	if last < said || f.cuts.Load() < 100 {
		t.Errorf("%d events over %d cut connections", last, f.cuts.Load())
	}
}
