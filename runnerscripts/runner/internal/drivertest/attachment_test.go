package drivertest

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/color"
	"image/png"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// pngFile is a small image.
var pngFile = func() []byte {
	var out bytes.Buffer
	picture := image.NewRGBA(image.Rect(0, 0, 8, 8))
	picture.Set(3, 3, color.RGBA{R: 255, A: 255})
	if err := png.Encode(&out, picture); err != nil {
		panic(err) // cannot happen: the buffer takes all
	}
	return out.Bytes()
}()

// pdfFile is a document of one empty page.
var pdfFile = []byte("%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n" +
	"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>endobj\nxref\n0 4\n0000000000 65535 f \n0000000009 00000 n \n" +
	"0000000052 00000 n \n0000000101 00000 n \ntrailer<</Size 4/Root 1 0 R>>\nstartxref\n162\n%%EOF\n")

// attached returns a check that the bytes of an attachment reach the model, that the next prompt still
// has them, and that the events say of an image that there was one.
func attached(name string, data []byte) func(*rig) {
	return func(r *rig) {
		list, err := runnerscripts.CheckAttachments([]runnerscripts.Attachment{{Name: name, Data: data}})
		if err != nil {
			r.Fatal(err)
		}
		c := r.talk()
		before := len(r.API.Requests())
		done, err := c.Prompt(r.Context(), "query", "plain-text look at "+name, list...)
		if err != nil || done.StopReason != runnerscripts.StopEndTurn {
			r.Fatalf("ended with %q, %v", done.StopReason, err)
		}
		want := base64.StdEncoding.EncodeToString(data)
		kind := list[0].Feature()
		if kind == runnerscripts.FeatureTextFiles {
			want = string(data)
		}
		sent := func(from int) (found bool) {
			for _, req := range r.API.Requests()[from:] {
				found = found || strings.Contains(string(req.Body), want)
			}
			return found
		}
		if !sent(before) {
			r.Fatalf("the model did not get %s; the last request is\n%.2000s", name, r.LastRequest().Body)
		}
		before = len(r.API.Requests())
		if r.prompt(c, "plain-text again"); !sent(before) {
			r.Errorf("the agent has forgotten %s", name)
		}
		said := agenttest.Payloads[runnerscripts.ContentChunk](r, r.Events(), runnerscripts.TypeUserMessage)
		images := 0
		for _, chunk := range said {
			if chunk.Content.Type == "image" {
				images++
			}
			if chunk.Content.Data != "" || strings.Contains(chunk.Content.URI, "base64") {
				r.Errorf("an event has the data: %.200s", agenttest.Show(r, chunk))
			}
		}
		if shown := r.name != "acp" && r.name != "gemini"; shown && (images == 1) != (kind == runnerscripts.FeatureImages) {
			r.Errorf("the events show %d images: %s", images, agenttest.Show(r, said))
		}
		r.SameAsTranscript()
	}
}

// attachmentMutants are the faults that the rules of attachments detect.
func attachmentMutants() []mutant {
	lost := broken{talk: func(c brokenConversation) brokenConversation {
		c.noFiles = true
		return c
	}}
	return []mutant{
		{name: "images are lost", rule: "images reach the model", says: "the model did not get picture.png", broken: lost},
		{name: "documents are lost", rule: "documents reach the model", says: "the model did not get paper.pdf", broken: lost, subject: claudeSubject},
		{name: "text files are lost", rule: "text files reach the model", says: "the model did not get notes.txt", broken: lost},
		{name: "the data of an image is in an event", rule: "images reach the model", says: "an event has the data", broken: broken{sink: func(_ runnerscripts.EventType, payload any) (any, bool) {
			if p, ok := payload.(runnerscripts.ContentChunk); ok && p.Content.Type == "image" {
				p.Content.Data = "data"
				return p, true
			}
			return payload, true
		}}},
	}
}
