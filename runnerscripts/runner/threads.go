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

// stockThreads has the runtime make as many threads as that: a goroutine that has a
// thread for itself and waits leaves the others without.
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
