package main

import (
	"runtime"
	"sync"
)

// spareThreads is how many threads a guest keeps in reserve. A Go program dies when it needs a
// thread and gets none; a command that fills the sandbox with processes up to its limit must not
// end the guest. Blocking system calls use threads. The runtime keeps the threads that it has
// started.
const spareThreads = 8

// stockThreads makes the runtime start n threads. Otherwise a goroutine that blocks a thread of its
// own could leave none for the others.
func stockThreads(n int) {
	var waiting sync.WaitGroup
	enough := make(chan struct{})
	waiting.Add(n)
	for range n {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread() // else the thread would end with the goroutine
			waiting.Done()
			<-enough
		}()
	}
	waiting.Wait()
	close(enough)
}
