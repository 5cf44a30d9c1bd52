package agent

import (
	"context"
	"sync"
)

// Life ends a conversation once: by Close, or immediately when its context ends. The zero value
// is ready to use.
type Life struct {
	ending  sync.Once
	unwatch func()
}

// Watch calls kill when ctx ends before Close is called. The driver's Start calls it once,
// before the conversation is used.
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

// Close stops the watch, waits for a running kill, and calls end. Later calls wait for the
// first and do nothing.
func (l *Life) Close(end func()) {
	l.ending.Do(func() {
		l.unwatch()
		end()
	})
}

// Closed returns the error for using a closed conversation.
func Closed() error { return Invalid("start the conversation again: it is closed") }
