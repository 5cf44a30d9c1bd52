package main

import (
	"runtime"
	"sync"
)

// spareThreads is how many threads a guest keeps in reserve. A Go program dies when it
// needs a thread and gets none; a command that fills the sandbox with processes up to its
// limit must not end the guest. Blocking system calls use threads; the runtime keeps
// threads that it has.
const spareThreads = 8

// stockThreads makes the runtime start n threads. Otherwise a goroutine that waits with a
// thread of its own leaves none for the others.
func stockThreads(n int) {
	var waiting sync.WaitGroup
	enough := make(chan struct{})
	waiting.Add(n)
	for range n {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread() // else the thread would end, too
			waiting.Done()
			<-enough
		}()
	}
	waiting.Wait()
	close(enough)
}
