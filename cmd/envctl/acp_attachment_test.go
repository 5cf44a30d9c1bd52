package main

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	acp "github.com/coder/acp-go-sdk"
)

func TestAnEditorsImageReachesTheAgentAndIsReplayed(t *testing.T) {
	alone(t)
	e := startEditor(t, "--scenario", file(t, "s.json", `{"turns":[{"steps":[{"text":"{{attachments}}"}]}]}`))
	id, dir := e.session()
	data := base64.StdEncoding.EncodeToString([]byte("GIF89a"))
	prompt := func(image string) error {
		_, err := e.Prompt(e.ctx(), acp.PromptRequest{SessionId: id, Prompt: []acp.ContentBlock{acp.TextBlock("look"), acp.ImageBlock(image, "image/gif")}})
		return err
	}
	if err := prompt(data); err != nil {
		t.Fatal(err)
	}
	const want = "image.gif image/gif 610f5ae4d76e332636a17bd357fd6ce99029316a99d320280d4d77a746bf29e8"
	if got := strings.TrimSpace(e.text(id)); got != want {
		t.Errorf("the agent got %q, want %q", got, want)
	}
	var replayed []acp.ContentBlock
	for _, u := range e.load(id, dir) {
		if u.UserMessageChunk != nil {
			replayed = append(replayed, u.UserMessageChunk.Content)
		}
	}
	if len(replayed) != 2 || replayed[0].Text.Text != "look" || replayed[1].Image == nil || replayed[1].Image.Data != data || replayed[1].Image.MimeType != "image/gif" {
		t.Errorf("replayed is %+v", replayed)
	}
	err := prompt(base64.StdEncoding.EncodeToString([]byte("\x7fELF\x00")))
	if refused := new(acp.RequestError); !errors.As(err, &refused) || refused.Code != codeInvalidParams || !strings.Contains(refused.Message, "is neither an image") {
		t.Errorf("a program as an image: %v", err)
	}
}
