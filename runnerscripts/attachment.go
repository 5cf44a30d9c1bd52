package runnerscripts

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/primitives"
)

// MaxAttachments limits the attachments of one prompt together: 10 MiB. With it a prompt fits into a
// line of the protocol and into a request to a server, and the models' APIs take it.
const MaxAttachments = 10 << 20

// Attachment is an image or a file that comes with a prompt. Its content decides what it is: an image
// (PNG, JPEG, GIF, WebP), a PDF document, or a text in UTF-8. The features [FeatureImages],
// [FeaturePDF] and [FeatureTextFiles] say what an agent accepts. Other files belong into the
// workspace, where the agent reads them with its tools.
type Attachment struct {
	// Name is the file's name, without a folder. Empty means a name by the kind, such as "image.png".
	Name string `json:"name,omitempty"`
	// MediaType, such as "image/png", may be empty. The one of an image or a PDF document must be that
	// of the content.
	MediaType string `json:"media_type,omitempty"`
	// Data is the content, in base64 in JSON. Events do not have it.
	Data []byte `json:"data,omitempty"`
	// Size is the length of the content, and Digest the name under which the store of the session has
	// it. Only events have them.
	Size   int64  `json:"size,omitempty"`
	Digest string `json:"digest,omitempty"`
}

// maxAttachmentName limits a name, in bytes, as file systems do.
const maxAttachmentName = 255

// imageNames are the types of images that models take, with the names of images without a name.
var imageNames = map[string]string{
	"image/png": "image.png", "image/jpeg": "image.jpg", "image/gif": "image.gif", "image/webp": "image.webp",
}

// mediaPDF is the media type of a PDF document.
const mediaPDF = "application/pdf"

// Feature returns what an agent must support to accept the attachment. It needs the MediaType only,
// which [CheckAttachments] completes.
func (a Attachment) Feature() Feature {
	switch {
	case imageNames[a.MediaType] != "":
		return FeatureImages
	case a.MediaType == mediaPDF:
		return FeaturePDF
	}
	return FeatureTextFiles
}

// Info returns the attachment as events have it: the Size in place of the content.
func (a Attachment) Info() Attachment {
	if len(a.Data) > 0 {
		a.Size = int64(len(a.Data))
	}
	a.Data = nil
	return a
}

// CheckAttachments returns the attachments of a prompt with the names and media types that they lack.
// The error is primitives.ErrLimit if they are larger than [MaxAttachments] together, and fs.ErrInvalid
// for one that is empty, of a kind that no agent accepts, or not of its media type.
func CheckAttachments(list []Attachment) ([]Attachment, error) {
	list = slices.Clone(list)
	size := 0
	for i := range list {
		if size += len(list[i].Data); size > MaxAttachments {
			return nil, fmt.Errorf("attachments[%d]: %w: the attachments have more than %d MiB together; copy large files into the workspace",
				i, primitives.ErrLimit, MaxAttachments>>20)
		}
		if err := list[i].complete(); err != nil {
			return nil, fmt.Errorf("attachments[%d]: %w: %w", i, fs.ErrInvalid, err)
		}
	}
	return list, nil
}

// complete checks the attachment and adds the name and the media type that it lacks.
func (a *Attachment) complete() error {
	switch {
	case len(a.Data) == 0:
		return fmt.Errorf("%q is empty; leave it out", a.Name)
	case len(a.Name) > maxAttachmentName || !utf8.ValidString(a.Name) || strings.ContainsFunc(a.Name, badInName):
		return fmt.Errorf("the name %.100q is no name of a file; give one of at most %d bytes, without a folder", a.Name, maxAttachmentName)
	}
	found, _, _ := strings.Cut(http.DetectContentType(a.Data), ";")
	name := imageNames[found]
	switch {
	case name != "":
	case found == mediaPDF:
		name = "document.pdf"
	case utf8.Valid(a.Data) && !bytes.ContainsRune(a.Data, 0):
		name = "file.txt"
		if imageNames[a.MediaType] != "" || a.MediaType == mediaPDF {
			return fmt.Errorf("%q is a text, not %s; correct media_type, or leave it out", a.Name, a.MediaType)
		}
		if found = a.MediaType; found == "" {
			found = "text/plain"
		}
	default:
		return fmt.Errorf("%q is neither an image (PNG, JPEG, GIF, WebP) nor a PDF document nor a text; copy it into the workspace and name it in the prompt", a.Name)
	}
	if a.MediaType != "" && a.MediaType != found {
		return fmt.Errorf("%q is %s, not %.100q; correct media_type, or leave it out", a.Name, found, a.MediaType)
	}
	a.MediaType = found
	if a.Name == "" {
		a.Name = name
	}
	a.Size, a.Digest = 0, ""
	return nil
}

// badInName reports whether a character cannot be in the name of an attachment: a separator of folders
// or a control character.
func badInName(r rune) bool { return r == '/' || r == '\\' || r < ' ' || r == 0x7f }

// Accept returns a [*ScriptFailure] with FailUnsupported for the first attachment that the agent does
// not accept, as [CheckAttachments] returns them.
func (r Recipe) Accept(list []Attachment) error {
	for i, a := range list {
		if f := a.Feature(); !slices.Contains(r.Supports, f) {
			return &ScriptFailure{Code: FailUnsupported, Message: fmt.Sprintf(
				"leave out attachments[%d] (%s, %s): the agent %q accepts no %s; the workspace can hold any file", i, a.Name, a.MediaType, r.Agent, f.words())}
		}
	}
	return nil
}

// words returns the plural of what a feature of attachments accepts.
func (f Feature) words() string {
	return map[Feature]string{FeatureImages: "images", FeaturePDF: "PDF documents", FeatureTextFiles: "text files"}[f]
}
