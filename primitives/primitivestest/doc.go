// Package primitivestest is the contract suite of
// [primitives.EnvironmentPrimitive]. Every backend passes it; a backend's own
// test is one call of [Run]:
//
//	func TestContract(t *testing.T) {
//		primitivestest.Run(t, primitivestest.Harness{
//			Open: func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error) {
//				return mybackend.New(ctx, mybackend.Config{Root: dir})
//			},
//		})
//	}
//
// A case is named after the rule it checks. If [primitives.Capabilities] say that a sandbox
// does not support something, the case still runs and asserts errors.ErrUnsupported. A case
// that needs a function that the [Harness] lacks does not run, and the log names it.
//
// Cases need nothing in the sandbox's image: they run one static program that the
// suite builds with the Go toolchain and writes into the sandbox. No case measures
// time.
//
// The package is for authors of backends. It must be called from a test that does not run in
// parallel with others, because the suite counts the goroutines and open files of the test's
// process.
package primitivestest
