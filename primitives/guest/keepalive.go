package guest

import (
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

// keepAliveSteps is in how many steps an answer is waited for.
const keepAliveSteps = 4

// keepAlive asks the peer at intervals whether it still lives. yamux's own keep-alive
// measures with the clock: a guest that was frozen for an hour would take its host for
// dead when it goes on. keepAlive counts short waits instead, which stand still while the
// program is frozen.
type keepAlive struct {
	mux   *yamux.Session
	every time.Duration
	lost  func() // the peer does not answer

	mu     sync.Mutex
	timer  *time.Timer // nil after the end
	rests  bool
	asked  bool // an answer is outstanding
	missed int  // steps without one
}

// newKeepAlive starts asking, unless every is negative.
func newKeepAlive(mux *yamux.Session, every time.Duration, lost func()) *keepAlive {
	if every == 0 {
		every = defaultKeepAlive
	}
	k := &keepAlive{mux: mux, every: every, lost: lost}
	k.mu.Lock() // step may come first
	defer k.mu.Unlock()
	if every > 0 {
		k.timer = time.AfterFunc(every, k.step)
	}
	return k
}

// step asks, or waits on for the answer.
func (k *keepAlive) step() {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.timer == nil || k.rests:
	case !k.asked:
		k.asked, k.missed = true, 0
		go k.ask()
		k.timer.Reset(k.every / keepAliveSteps)
	case k.missed+1 < keepAliveSteps:
		k.missed++
		k.timer.Reset(k.every / keepAliveSteps)
	default:
		k.timer = nil
		go k.lost()
	}
}

// ask returns when the peer has answered or the session has ended.
func (k *keepAlive) ask() {
	_, err := k.mux.Ping()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = false
	if err == nil && k.timer != nil && !k.rests {
		k.timer.Reset(k.every)
	}
}

// rest stops asking for as long as the peer is known not to answer.
func (k *keepAlive) rest(rests bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rests, k.missed = rests, 0
	if k.timer == nil {
		return
	}
	k.timer.Stop()
	if !rests {
		k.timer.Reset(k.every / keepAliveSteps)
	}
}

// stop is for when the session has ended.
func (k *keepAlive) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer != nil {
		k.timer.Stop()
		k.timer = nil
	}
}
