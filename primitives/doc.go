// Package primitives defines what every sandbox can do: run commands, read and write files,
// watch them, report its state, and terminate.
//
// The contract is [EnvironmentPrimitive]. Programs that run agents should use package
// environment or session instead; import this package to talk to a sandbox directly, or to add
// a backend. A backend proves that it keeps the contract with one call of primitivestest.Run.
//
// A program has the kinds of sandbox whose packages it imports, because each calls [Register].
//
// The functions [Run], [ReadFile], [WriteFiles], [Pack], [Unpack] and [Reattach] use a
// backend's own implementation if it has one (an optional one-method interface). Otherwise they
// fall back on the contract, as io/fs does, or return errors.ErrUnsupported. Call the functions;
// never type-assert for the interfaces.
//
// The rules below hold for every method of every backend.
//
//   - Paths use slashes. A relative path is relative to the workspace
//     ([Paths].Workspace) and confined to it: a path that leaves it, through ".."
//     or through a symbolic link, returns [ErrPathEscape], even if a part of the
//     path is missing. An absolute path names a file of the sandbox's own file
//     system.
//   - Errors are a [*Error] that says where, around a sentinel that says what.
//     Test them with errors.Is, never by their text. Only a backend reads the text of its
//     engine's errors, where the engine has no code for them.
//   - An operation that a sandbox does not support returns errors.ErrUnsupported,
//     and its [Capabilities] say so beforehand.
//   - After Terminate every call returns [ErrTerminated]. After the sandbox or the
//     connection to it has died, every call returns [ErrUnavailable]. Neither is
//     ever an exit status or an empty result.
//   - Every method may be called from several goroutines at once.
package primitives
