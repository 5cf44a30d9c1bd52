// Package frugal makes the importing program start on one processor. For every further
// processor the runtime keeps memory of each size class in stock, a fifth of an idle guest's
// memory, and does not return it when the number of processors is reduced later.
//
// Packages are initialized in the order of their paths, so this one comes early because it
// imports nothing. Only the memory savings depend on that.
package frugal

import "runtime"

// Processors is the number of processors on which the program would have started.
var Processors = runtime.GOMAXPROCS(1) // set before other packages start threads
