package primitivestest

import (
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/agentenv-dev/agentenv/primitives"
)

type eventSeq = iter.Seq2[primitives.WatchEvent, error]

// brokenEvents changes the events of every watch.
func brokenEvents(change func(ev primitives.WatchEvent) []primitives.WatchEvent) func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return broken(func(f *faults) {
		f.watch = func(ctx context.Context, dir string, opts primitives.WatchOptions) (iter.Seq2[primitives.WatchEvent, error], error) {
			seq, err := f.Watch(ctx, dir, opts)
			if err != nil {
				return nil, err
			}
			return func(yield func(primitives.WatchEvent, error) bool) {
				for ev, err := range seq {
					if err != nil {
						yield(ev, err)
						return
					}
					for _, ev := range change(ev) {
						if !yield(ev, nil) {
							return
						}
					}
				}
			}, nil
		}
	})
}

// brokenWatch changes the options of every watch.
func brokenWatch(change func(opts *primitives.WatchOptions)) func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive {
	return broken(func(f *faults) {
		f.watch = func(ctx context.Context, dir string, opts primitives.WatchOptions) (iter.Seq2[primitives.WatchEvent, error], error) {
			change(&opts)
			return f.Watch(ctx, dir, opts)
		}
	})
}

func watchMutants() []mutant {
	return []mutant{
		{"the files of a batch have other names first", "the folders and files of a batch are created once, under their own names", `rename h", want "create a, create a/b, create a/b/f`, brokenBatch(func(ctx context.Context, f *faults, file primitives.File) error {
			temp := file.Path + ".part"
			if err := writeOne(ctx, f, temp, file); err != nil {
				return err
			}
			return f.Move(ctx, temp, file.Path)
		})},
		{"a rename is a creation and a removal", "a renamed file is one rename with both names", `events: got "remove old, create new", want "rename new from old"`, brokenEvents(func(ev primitives.WatchEvent) []primitives.WatchEvent {
			if ev.Op != primitives.OpRename {
				return []primitives.WatchEvent{ev}
			}
			gone := ev
			gone.Op, gone.Path, gone.From = primitives.OpRemove, ev.From, ""
			ev.Op, ev.From = primitives.OpCreate, ""
			return []primitives.WatchEvent{gone, ev}
		})},
		{"a watch is live only when it is read", "a change right after Watch is reported", inVain + " for create", broken(func(f *faults) {
			f.watch = func(ctx context.Context, dir string, opts primitives.WatchOptions) (iter.Seq2[primitives.WatchEvent, error], error) {
				return func(yield func(primitives.WatchEvent, error) bool) {
					// The first change after Watch is missed.
					ready, stop := context.WithCancel(ctx)
					first, err := f.Watch(ready, dir, opts)
					if err == nil {
						for range first {
							break
						}
					}
					stop()
					seq, err := f.Watch(ctx, dir, opts)
					if err != nil {
						yield(primitives.WatchEvent{}, err)
						return
					}
					seq(yield)
				}, nil
			}
		})},
		{"the hundredth watch is refused", "there can be many watches at once, of one folder or of several", "Watch 99: watch: limit was exceeded", broken(func(f *faults) {
			n := 0
			f.watch = func(ctx context.Context, dir string, opts primitives.WatchOptions) (iter.Seq2[primitives.WatchEvent, error], error) {
				if n++; n >= 100 {
					return nil, &primitives.Error{Op: "watch", Err: primitives.ErrLimit}
				}
				return f.Watch(ctx, dir, opts)
			}
		})},
		{"Ignore is ignored", "Ignore leaves out a name at any depth", `events: got "create x.log, create a/y.log, create a/f", want "create a/f"`, brokenWatch(func(opts *primitives.WatchOptions) { opts.Ignore = nil })},
		{"Include is ignored", "Include reports only what matches", `events: got "create a.txt, create a.go, create src/b.go, create src/c, create docs/x"`, brokenWatch(func(opts *primitives.WatchOptions) { opts.Include = nil })},
		{"only the directory itself is watched", "changes deep in the tree are reported", `events: got "", want "remove a/b/c/d/f"`, brokenWatch(func(opts *primitives.WatchOptions) { opts.Shallow = true })},
		{"Debounce is ignored", "debounce reports a burst of one file once, as it is in the end", "one event: not even within", brokenWatch(func(opts *primitives.WatchOptions) { opts.Debounce = 0 })},
		{"content is cut in silence", "content that is too large is omitted, and the event says so", `omitted: got "", want "too_large"`, brokenEvents(func(ev primitives.WatchEvent) []primitives.WatchEvent {
			ev.Omitted = ""
			return []primitives.WatchEvent{ev}
		})},
		{"events get lost in silence", "ten thousand files at once are complete, with an overflow at worst", "ten thousand files", brokenEvents(func(ev primitives.WatchEvent) []primitives.WatchEvent {
			if strings.HasSuffix(ev.Path, "f07777") {
				return nil
			}
			return []primitives.WatchEvent{ev}
		})},
		{"events are reported twice", "nothing is created twice", "was created 2 times", brokenEvents(func(ev primitives.WatchEvent) []primitives.WatchEvent {
			return []primitives.WatchEvent{ev, ev}
		})},
		{"a cancelled watch is an error", "a cancelled watch ends without an error", "waiting for end of the watch: context canceled", broken(func(f *faults) {
			f.watch = func(ctx context.Context, dir string, opts primitives.WatchOptions) (iter.Seq2[primitives.WatchEvent, error], error) {
				seq, err := f.Watch(ctx, dir, opts)
				return withEnd(ctx, seq), err
			}
		})},
	}
}

// withEnd adds the error of the context to the end of a sequence.
func withEnd(ctx context.Context, seq eventSeq) eventSeq {
	return func(yield func(primitives.WatchEvent, error) bool) {
		for ev, err := range seq {
			if !yield(ev, err) {
				return
			}
		}
		if err := ctx.Err(); err != nil {
			yield(primitives.WatchEvent{}, err)
		}
	}
}

func lifecycleMutants() []mutant {
	return []mutant{
		{"Terminate twice is an error", "Terminate again is an empty report and no error", "Terminate: terminate: sandbox is terminated", broken(func(f *faults) {
			done := false
			f.terminate = func(ctx context.Context) (primitives.TerminateReport, error) {
				if done {
					return primitives.TerminateReport{}, &primitives.Error{Op: "terminate", Err: primitives.ErrTerminated}
				}
				done = true
				return f.Terminate(ctx)
			}
		})},
		{"Terminate does nothing", "Terminate ends a child", inVain + " for the command to exit", broken(func(f *faults) {
			f.terminate = func(context.Context) (primitives.TerminateReport, error) { return primitives.TerminateReport{}, nil }
		})},
		{"a command runs after Terminate", "Exec after Terminate is ErrTerminated", `want "sandbox is terminated" in its chain`, broken(func(f *faults) {
			f.terminate = func(context.Context) (primitives.TerminateReport, error) { return primitives.TerminateReport{}, nil }
		})},
		{"Terminate does not say whom it killed", "Terminate reports what it killed", "killed [], want at least the two processes", broken(func(f *faults) {
			f.terminate = func(ctx context.Context) (primitives.TerminateReport, error) {
				_, err := f.Terminate(ctx)
				return primitives.TerminateReport{}, err
			}
		})},
		{"Terminate gives up when its context is cancelled", "Terminate runs to its end although its context is cancelled", "Terminate: context canceled", broken(func(f *faults) {
			f.terminate = func(ctx context.Context) (primitives.TerminateReport, error) {
				if err := ctx.Err(); err != nil {
					return primitives.TerminateReport{}, err
				}
				return f.Terminate(ctx)
			}
		})},
		{"nobody says how isolated it is", "the capabilities name the platform and do not change", `the isolation "" is none of those there are`, broken(func(f *faults) {
			can := f.can
			f.can = func() primitives.Capabilities {
				c := can()
				c.Isolation = ""
				return c
			}
		})},
		{"Poll says running after Terminate", "Poll after Terminate is terminated, which is no error", `status: got "running", want "terminated"`, broken(func(f *faults) {
			f.poll = func(context.Context) (primitives.State, error) {
				return primitives.State{Status: primitives.StatusRunning}, nil
			}
		})},
		{"a dead sandbox has no files", "List after Terminate is ErrTerminated", `List: error is <nil>, want "sandbox is terminated" in its chain`, brokenList(func(infos []primitives.FileInfo, err error) ([]primitives.FileInfo, error) {
			if errors.Is(err, primitives.ErrTerminated) {
				err = nil
			}
			return infos, err
		})},
		{"a closed handle goes on", "Stat after Close is ErrUnavailable", `want "sandbox is unavailable" in its chain`, broken(func(f *faults) { f.close = func() error { return nil } })},
		{"Close twice is an error", "Close may be called again and after Terminate", `second: got &errors.errorString{s:"closed"}, want <nil>`, broken(func(f *faults) {
			done := false
			f.close = func() error {
				if done {
					return errors.New("closed")
				}
				done = true
				return f.Close()
			}
		})},
		{"all sandboxes have the same id", "two sandboxes have different ids and folders", "same id: got true, want false", broken(func(f *faults) { f.id = func() string { return "sandbox" } })},
		{"only one command runs at a time", "commands and files work at the same time", ": busy", broken(func(f *faults) {
			busy := make(chan struct{}, 1)
			f.exec = func(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
				select {
				case busy <- struct{}{}:
					done := sync.OnceFunc(func() { <-busy })
					p, err := f.Exec(ctx, cmd)
					if err != nil {
						done()
						return nil, err
					}
					return faultyProcess(p, func(f *processFaults) {
						f.wait = func(ctx context.Context) (primitives.ExitStatus, error) {
							defer done()
							return p.Wait(ctx)
						}
						f.close = func() error {
							defer done()
							return p.Close()
						}
					}), nil
				default:
					return nil, &primitives.Error{Op: "exec", Err: errors.New("busy")}
				}
			}
		})},
		{"Pack packs more than was chosen", "Pack of chosen paths holds just these, in their order, without missing ones", `entries: got "0 b , 2 link sub/f, 5 sub , 0 sub/f , 2 sub/out ../outside"`, broken(func(f *faults) {
			f.pack = func(ctx context.Context, dir string, opts primitives.PackOptions) (io.ReadCloser, error) {
				opts.Only = nil
				return primitives.Pack(ctx, f.EnvironmentPrimitive, dir, opts)
			}
		})},
		{"Pack sorts what was chosen", "Pack of chosen paths holds just these, in their order, without missing ones", `entries: got "0 b , 2 link sub/f, 0 sub/f , 2 sub/out ../outside"`, broken(func(f *faults) {
			f.pack = func(ctx context.Context, dir string, opts primitives.PackOptions) (io.ReadCloser, error) {
				slices.Sort(opts.Only)
				return primitives.Pack(ctx, f.EnvironmentPrimitive, dir, opts)
			}
		})},
		{"Pack includes ignored files", "Pack leaves out what is ignored, and all below it", `entries: got "b.log node_modules node_modules/x node_modules/x/f src src/a.go src/a.log"`, broken(func(f *faults) {
			f.pack = func(ctx context.Context, dir string, _ primitives.PackOptions) (io.ReadCloser, error) {
				return primitives.Pack(ctx, f.EnvironmentPrimitive, dir, primitives.PackOptions{})
			}
		})},
		{"Unpack takes a broken archive", "Unpack of half an archive is an error", `Unpack: error is <nil>, want "unexpected EOF" in its chain`, broken(func(f *faults) {
			f.unpack = func(ctx context.Context, dir string, r io.Reader) error {
				err := primitives.Unpack(ctx, f.EnvironmentPrimitive, dir, r)
				if errors.Is(err, io.ErrUnexpectedEOF) {
					return nil
				}
				return err
			}
		})},
		{"the offsets of Reattach are ignored", "a durable command can be read from any offset of each stream", `stdout: got "0123456789", want "456789"`, broken(func(f *faults) {
			f.reattach = func(ctx context.Context, id string, _ primitives.Offset) (primitives.Process, error) {
				return primitives.Reattach(ctx, f.EnvironmentPrimitive, id, primitives.Offset{})
			}
		})},
		{"lost output of a durable command looks like its end", "a durable command goes on when it has printed more than is kept", `Read: error is <nil>, want "limit was exceeded" in its chain`, broken(func(f *faults) {
			f.reattach = func(ctx context.Context, id string, from primitives.Offset) (primitives.Process, error) {
				p, err := primitives.Reattach(ctx, f.EnvironmentPrimitive, id, from)
				if err != nil {
					return nil, err
				}
				return faultyProcess(p, func(p *processFaults) { p.stdout = readCloser{blindToLimits{p.Stdout()}, p.Stdout()} }), nil
			}
		})},
		{"Reattach always follows", "the output so far of a durable command that goes on can be read to its end", inVain + " for end of the stream", broken(func(f *faults) {
			f.reattach = func(ctx context.Context, id string, from primitives.Offset) (primitives.Process, error) {
				from.NoFollow = false
				return primitives.Reattach(ctx, f.EnvironmentPrimitive, id, from)
			}
		})},
		{"closing a durable command ends it", "closing a durable command only lets go of it", "stdout: got \"first\\n\", want \"first\\nsecond\\n\"", brokenProcess(func(p *processFaults) {
			p.close = func() error {
				_ = p.Signal(context.Background(), primitives.SIGKILL) // or the process has exited
				return p.Close()
			}
		})},
	}
}

// blindToLimits returns EOF when output was lost.
type blindToLimits struct{ io.Reader }

func (r blindToLimits) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if errors.Is(err, primitives.ErrLimit) {
		err = io.EOF
	}
	return n, err
}
