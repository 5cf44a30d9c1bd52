// Package frugal has the program that imports it start on one processor. For every
// further one the runtime keeps memory of each size in stock, a fifth of what an idle
// guest takes, and gives none of it back when there are fewer processors later.
//
// Packages are initialised in the order of their paths, so this one comes early
// because it imports nothing. Only memory depends on that.
package frugal

import "runtime"

// Processors is on how many the program would have started.
var Processors = runtime.GOMAXPROCS(1) // set before other packages start threads
