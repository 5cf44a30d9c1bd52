package primitives

// RunnerHolder is implemented by primitives whose sandboxes have a runner: the program that the
// provider has installed as their guest, or can reach on this machine. Call [RunnerPath].
type RunnerHolder interface {
	// RunnerPath does what the function [RunnerPath] promises.
	RunnerPath(file string) string
}

// RunnerPath returns the absolute path in the sandbox of the runner that is in file on this machine,
// so that nobody needs to copy it into the sandbox. Every command of the sandbox can execute it. It is
// empty if the sandbox does not have that program, or if that is not known.
func RunnerPath(p EnvironmentPrimitive, file string) string {
	if h, ok := p.(RunnerHolder); ok {
		return h.RunnerPath(file)
	}
	return ""
}
