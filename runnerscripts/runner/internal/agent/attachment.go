package agent

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// TextFile returns an attachment that is a text as a part of a prompt, for agents that take files only
// so.
func TextFile(a runnerscripts.Attachment) string {
	return fmt.Sprintf("<file name=%q>\n%s\n</file>", a.Name, a.Data)
}

// DataURL returns an attachment as a URL.
func DataURL(a runnerscripts.Attachment) string {
	return "data:" + a.MediaType + ";base64," + base64.StdEncoding.EncodeToString(a.Data)
}

// DataURLType returns the media type of a URL that holds the data itself.
func DataURLType(url string) (media string, ok bool) {
	head, _, _ := strings.Cut(url, ",")
	media, ok = strings.CutPrefix(head, "data:")
	media, _, _ = strings.Cut(media, ";")
	return media, ok
}
