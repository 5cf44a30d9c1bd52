// Package ended makes the errors of a sandbox in which nothing runs any more.
package ended

import "os"

// Because returns err as an error that is os.ErrProcessDone, too, without its text, which speaks of
// a process that the user has not started.
func Because(err error) error { return done{err} }

type done struct{ error }

func (done) Is(target error) bool { return target == os.ErrProcessDone }

func (d done) Unwrap() error { return d.error }
