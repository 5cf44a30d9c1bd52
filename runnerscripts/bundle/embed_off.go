//go:build !embedrunner

package bundle

const notEmbedded = "this program was built without the tag embedrunner"

func embedded(string) ([]byte, bool) { return nil, false }
