//go:build !embedrunner

package bundle

const notEmbedded = "this program carries no runner: neither bundle.Embed nor the build tag embedrunner"

func embedded(string) ([]byte, bool) { return nil, false }
