//go:build embedrunner

package bundle

import "embed"

// dist holds envrunner-<os>-<arch> for the platforms of a release; "task dist"
// makes them. A build with the tag and without the files fails, as it should.
//
//go:embed dist/envrunner-*
var dist embed.FS

const notEmbedded = "this program carries no runner for the platform"

func embedded(name string) ([]byte, bool) {
	content, err := dist.ReadFile("dist/" + name)
	return content, err == nil
}
