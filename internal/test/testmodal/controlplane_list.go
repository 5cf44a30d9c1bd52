package testmodal

import (
	"context"
	"maps"
	"slices"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// pageSize is how many sandboxes one call lists. It is small, so that a few sandboxes suffice
// to test whether a client reads further pages.
const pageSize = 5

// SandboxListV2 lists the sandboxes created before a time, newest first.
func (c *controlPlane) SandboxListV2(_ context.Context, req *pb.SandboxListRequest) (*pb.SandboxListResponse, error) {
	if err := c.checkEnvironment(req.GetEnvironmentName()); err != nil {
		return nil, err
	}
	var page []*pb.SandboxInfo
	all := c.list()
	slices.Reverse(all)
	for _, sb := range all {
		if len(page) < pageSize && sb.matches(req) {
			page = append(page, sb.info())
		}
	}
	return pb.SandboxListResponse_builder{Sandboxes: page}.Build(), nil
}

// seconds converts a time to the protocol's format.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

func (sb *sandbox) matches(req *pb.SandboxListRequest) bool {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	switch {
	case req.GetBeforeTimestamp() > 0 && seconds(sb.created) >= req.GetBeforeTimestamp():
		return false
	case req.GetAppId() != "" && req.GetAppId() != sb.app:
		return false
	case sb.result != nil && !req.GetIncludeFinished():
		return false
	}
	for name, value := range tagMap(req.GetTags()) {
		if have, ok := sb.tags[name]; !ok || have != value {
			return false
		}
	}
	return true
}

// info returns the sandbox's entry in a list.
func (sb *sandbox) info() *pb.SandboxInfo {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	task := pb.TaskInfo_builder{Id: sb.task, SandboxId: sb.id, StartedAt: seconds(sb.created), Result: sb.result}
	return pb.SandboxInfo_builder{
		Id: sb.id, CreatedAt: seconds(sb.created), AppId: sb.app, Name: sb.name, ImageId: sb.image.id, Tags: sb.tagList(),
		TaskInfo: task.Build(), TimeoutSecs: sb.definition.GetTimeoutSecs(),
		Regions: sb.definition.GetSchedulerPlacement().GetRegions(),
	}.Build()
}

// tagList returns the tags sorted by name. The caller holds sb.mu.
func (sb *sandbox) tagList() []*pb.SandboxTag {
	var all []*pb.SandboxTag
	for _, name := range slices.Sorted(maps.Keys(sb.tags)) {
		all = append(all, pb.SandboxTag_builder{TagName: name, TagValue: sb.tags[name]}.Build())
	}
	return all
}

// SandboxTagsSetV2 replaces all tags.
func (c *controlPlane) SandboxTagsSetV2(_ context.Context, req *pb.SandboxTagsSetRequest) (*emptypb.Empty, error) {
	sb, err := c.sandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	if len(req.GetTags()) > maxTags {
		return nil, invalid("A Sandbox has at most %d tags, got %d", maxTags, len(req.GetTags()))
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.tags = tagMap(req.GetTags())
	return &emptypb.Empty{}, nil
}

func (c *controlPlane) SandboxTagsGetV2(_ context.Context, req *pb.SandboxTagsGetRequest) (*pb.SandboxTagsGetResponse, error) {
	sb, err := c.sandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return pb.SandboxTagsGetResponse_builder{Tags: sb.tagList()}.Build(), nil
}
