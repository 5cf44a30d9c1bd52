// Package primitives defines what every sandbox can do: run commands, read and
// write files, watch them, say whether it still lives, and end.
//
// The contract is [EnvironmentPrimitive]. Programs that run agents should use
// package environment or session instead; import this package to talk to a
// sandbox directly, or to add a backend. A backend proves that it keeps the
// contract with one call of primitivestest.Run.
//
// Beside the interface stand functions ([Run], [ReadFile], [WriteFiles],
// [Pack], [Unpack], [Reattach]) that use a backend's own way where it has one
// (an optional one-method interface) and fall back on the contract where it has
// not, the way io/fs does it. Call the functions; never assert for the
// interfaces.
//
// The rules below hold for every method of every backend.
//
//   - Paths use slashes. A relative path is relative to the workspace
//     ([Paths].Workspace) and confined to it: one that leaves it, through ".."
//     or through a symbolic link, is refused with [ErrPathEscape], also behind a
//     name that is missing. An absolute path names a file of the sandbox's own
//     file system.
//   - Errors are a [*Error] that says where, around a sentinel that says what.
//     Test them with errors.Is. Nothing matches on error text.
//   - What a sandbox cannot do is errors.ErrUnsupported, and its [Capabilities]
//     say so beforehand.
//   - After Terminate every call returns [ErrTerminated]; when the sandbox or
//     the way to it has died, [ErrUnavailable]. Neither is ever an exit status
//     or an empty result.
//   - Every method may be called from several goroutines at once.
package primitives
