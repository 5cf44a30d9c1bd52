package main

import (
	"runtime"
	"sync"
)

// spareThreads is how many threads a guest has in stock. A program of Go dies when it
// needs one more and gets none, and whoever fills a sandbox with processes until it may
// have no more must not take its guest with him. Threads are needed for system calls
// that take long, and are kept.
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
