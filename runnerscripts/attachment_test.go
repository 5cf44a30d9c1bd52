package runnerscripts_test

import (
	"bytes"
	"errors"
	"io/fs"
	"reflect"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	rs "github.com/agentenv-dev/agentenv/runnerscripts"
)

// The first bytes of files, by which their types are known.
const (
	pngBytes = "\x89PNG\r\n\x1a\n"
	pdfBytes = "%PDF-1.7\n"
)

func TestAttachmentsGetTheNameAndTypeOfTheirContent(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]struct{ name, media, feature string }{
		pngBytes:                       {"image.png", "image/png", "images"},
		"\xff\xd8\xff\xe0":             {"image.jpg", "image/jpeg", "images"},
		"GIF89a":                       {"image.gif", "image/gif", "images"},
		"RIFF\x04\x00\x00\x00WEBPVP8 ": {"image.webp", "image/webp", "images"},
		pdfBytes:                       {"document.pdf", "application/pdf", "pdf"},
		"<p>ä":                         {"file.txt", "text/plain", "text_files"},
	} {
		got, err := rs.CheckAttachments([]rs.Attachment{{Data: []byte(content)}})
		if err != nil || got[0].Name != want.name || got[0].MediaType != want.media || string(got[0].Feature()) != want.feature {
			t.Errorf("%q: %+v, %v", content, got, err)
		}
	}
	given := rs.Attachment{Name: "data.csv", MediaType: "text/csv", Data: []byte("a,b")}
	if got, err := rs.CheckAttachments([]rs.Attachment{given}); err != nil || !reflect.DeepEqual(got, []rs.Attachment{given}) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAttachmentsThatNoAgentCanHaveAreRefused(t *testing.T) {
	t.Parallel()
	png := []byte(pngBytes)
	for name, c := range map[string]struct {
		list []rs.Attachment
		want error
		says string
	}{
		"nothing":                 {[]rs.Attachment{{Name: "a.png", Data: png}, {Name: "b.png"}}, fs.ErrInvalid, `attachments[1]: invalid argument: "b.png" is empty`},
		"a program":               {[]rs.Attachment{{Name: "a.out", Data: []byte("\x7fELF\x02\x01\x00")}}, fs.ErrInvalid, "copy it into the workspace"},
		"another image":           {[]rs.Attachment{{Name: "a.jpg", MediaType: "image/jpeg", Data: png}}, fs.ErrInvalid, `is image/png, not "image/jpeg"`},
		"an image said to be one": {[]rs.Attachment{{Name: "a.png", MediaType: "image/png", Data: []byte("text")}}, fs.ErrInvalid, "is a text, not image/png"},
		"a folder in the name":    {[]rs.Attachment{{Name: "../a.png", Data: png}}, fs.ErrInvalid, "is no name of a file"},
		"a line in the name":      {[]rs.Attachment{{Name: "a\n.png", Data: png}}, fs.ErrInvalid, "is no name of a file"},
		"too much together": {[]rs.Attachment{
			{Data: bytes.Repeat([]byte("a"), rs.MaxAttachments/2)}, {Data: bytes.Repeat([]byte("a"), rs.MaxAttachments/2+1)},
		}, primitives.ErrLimit, "attachments[1]: limit"},
	} {
		if got, err := rs.CheckAttachments(c.list); got != nil || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	most := []rs.Attachment{{Data: bytes.Repeat([]byte("a"), rs.MaxAttachments)}}
	if _, err := rs.CheckAttachments(most); err != nil {
		t.Errorf("the limit: %v", err)
	}
}

func TestAnAttachmentThatTheAgentDoesNotAcceptIsNamed(t *testing.T) {
	t.Parallel()
	list, err := rs.CheckAttachments([]rs.Attachment{{Data: []byte(pngBytes)}, {Name: "paper.pdf", Data: []byte(pdfBytes)}})
	if err != nil {
		t.Fatal(err)
	}
	images := rs.Recipe{Agent: "painter", Supports: []rs.Feature{rs.FeatureImages}}
	f, ok := errors.AsType[*rs.ScriptFailure](images.Accept(list))
	if !ok || f.Code != rs.FailUnsupported || !strings.Contains(f.Message, `attachments[1] (paper.pdf, application/pdf): the agent "painter" accepts no PDF documents`) {
		t.Errorf("%+v", f)
	}
	if err := images.Accept(list[:1]); err != nil {
		t.Error(err)
	}
}
