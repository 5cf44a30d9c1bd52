package modal

import (
	"context"
	"slices"
	"strconv"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/primitives"
)

// List returns the sandboxes of the app that this package created, of all owners, oldest first.
// It does not attach to them.
func (p Provider) List(ctx context.Context) ([]primitives.Info, error) {
	var list []primitives.Info
	err := p.ask(ctx, func(_ *client, found []*pb.SandboxInfo) error {
		for _, f := range found {
			list = append(list, describe(f))
		}
		return nil
	})
	slices.SortFunc(list, func(a, b primitives.Info) int { return a.Created.Compare(b.Created) })
	return list, wrap("list", p.app(), err)
}

// ask calls do with the sandboxes of the app.
func (p Provider) ask(ctx context.Context, do func(c *client, found []*pb.SandboxInfo) error) error {
	c, err := connect(p)
	if err != nil {
		return err
	}
	defer c.Close()
	app, err := c.findApp(ctx, p, false)
	if isNotFound(err) && p.App == "" {
		return nil // no sandbox has been created yet
	}
	if err != nil {
		return err
	}
	found, err := c.sandboxes(ctx, app.AppID)
	if err != nil {
		return explain(err)
	}
	return do(c, found)
}

// sandboxes returns the live sandboxes of an app that this package created. The SDK's own list
// returns only their IDs.
func (c *client) sandboxes(ctx context.Context, app string) ([]*pb.SandboxInfo, error) {
	var all []*pb.SandboxInfo
	seen := map[string]bool{}
	before := 0.0
	for {
		resp, err := c.control().SandboxListV2(ctx, pb.SandboxListRequest_builder{
			AppId: app, BeforeTimestamp: before,
			Tags: []*pb.SandboxTag{pb.SandboxTag_builder{TagName: tagSandbox, TagValue: tagIs}.Build()},
		}.Build())
		if err != nil {
			return nil, err
		}
		page := resp.GetSandboxes()
		known := len(all)
		for _, f := range page {
			if !seen[f.GetId()] {
				seen[f.GetId()] = true
				all = append(all, f)
			}
		}
		if len(all) == known { // the end, or a page that is repeated
			return all, nil
		}
		before = page[len(page)-1].GetCreatedAt()
	}
}

func tagsOf(f *pb.SandboxInfo) map[string]string {
	tags := make(map[string]string, len(f.GetTags()))
	for _, t := range f.GetTags() {
		tags[t.GetTagName()] = t.GetTagValue()
	}
	return tags
}

// created returns when a sandbox was created.
func created(f *pb.SandboxInfo) time.Time {
	return plausible(time.UnixMicro(int64(f.GetCreatedAt() * 1e6)))
}

func describe(f *pb.SandboxInfo) primitives.Info {
	tags := tagsOf(f)
	made := findOwner(tags)
	info := primitives.Info{
		ID: f.GetId(), Name: f.GetName(), Image: f.GetImageId(), Created: created(f), Status: primitives.StatusRunning,
		Owned: made == owner.Alive, Kept: tags[tagKeep] == keepDone, Orphan: made == owner.Dead && tags[tagKeep] != keepDone,
		Expires: expires(tags),
		Session: tags[tagSession], Owner: describeOwner(tags),
	}
	info.GuestVersion, _ = strconv.Atoi(tags[tagGuest]) // 0 means unknown
	if r := f.GetTaskInfo().GetResult(); r != nil {
		info.Status = statusOf(r).Status
	}
	return info
}
