package acp

import (
	"encoding/base64"
	"net/url"

	acpsdk "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// AttachmentURL begins the URLs of attachments that are sent as embedded resources. A program may write
// them into the prompt.
const AttachmentURL = "attachment:///"

// blocks returns the content of a prompt. An attachment that the agent has not announced to accept is
// FailUnsupported, but for a text, which every agent accepts.
func (c *conversation) blocks(p *peer, text string, attachments []runnerscripts.Attachment) ([]acpsdk.ContentBlock, error) {
	accepts := p.init.AgentCapabilities.PromptCapabilities
	list := []acpsdk.ContentBlock{acpsdk.TextBlock(text)}
	for _, a := range attachments {
		data, media := base64.StdEncoding.EncodeToString(a.Data), a.MediaType
		address := AttachmentURL + url.PathEscape(a.Name)
		switch a.Feature() {
		case runnerscripts.FeatureImages:
			if !accepts.Image {
				return nil, c.accepts(a, "images")
			}
			list = append(list, acpsdk.ImageBlock(data, media))
		case runnerscripts.FeaturePDF:
			if !accepts.EmbeddedContext {
				return nil, c.accepts(a, "embedded files")
			}
			list = append(list, acpsdk.ResourceBlock(acpsdk.EmbeddedResourceResource{
				BlobResourceContents: &acpsdk.BlobResourceContents{Uri: address, MimeType: &media, Blob: data},
			}))
		default:
			if !accepts.EmbeddedContext {
				list = append(list, acpsdk.TextBlock(agent.TextFile(a)))
				continue
			}
			list = append(list, acpsdk.ResourceBlock(acpsdk.EmbeddedResourceResource{
				TextResourceContents: &acpsdk.TextResourceContents{Uri: address, MimeType: &media, Text: string(a.Data)},
			}))
		}
	}
	return list, nil
}

func (c *conversation) accepts(a runnerscripts.Attachment, kind string) error {
	return agent.Unsupported("leave out the attachment %s (%s): %s accepts no %s; the workspace can hold any file", a.Name, a.MediaType, c.cfg.Program, kind)
}
