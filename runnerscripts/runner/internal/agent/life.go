package agent

import (
	"context"
	"sync"
)

// Life ends a conversation once: by its Close, and at once when its context ends. The zero
// value is ready to use.
type Life struct {
	ending  sync.Once
	unwatch func()
}

// Watch calls kill when ctx ends, unless Close was called before. The driver's Start calls it
// once, before the conversation is used.
func (l *Life) Watch(ctx context.Context, kill func()) {
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(killed)
		kill()
	})
	l.unwatch = func() {
		if !stop() {
			<-killed
		}
	}
}

// Close ends the watch, waits for a kill that has begun, and calls end. Again it waits for
// the first call and does nothing.
func (l *Life) Close(end func()) {
	l.ending.Do(func() {
		l.unwatch()
		end()
	})
}

// Closed is the error of a use of a conversation that is closed.
func Closed() error { return Invalid("start the conversation again: it is closed") }
