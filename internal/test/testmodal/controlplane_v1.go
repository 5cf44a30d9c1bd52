package testmodal

import (
	"context"
	"fmt"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// The SDK uses the older methods for sandboxes with GPUs, which it recognizes by the length of
// their IDs. They do the same as the newer ones.

// lengthV1 is the length of an older ID without its prefix.
const lengthV1 = 22

// isV1 reports whether an ID is of the older kind.
func isV1(id string) bool { return len(id) == len("sb-")+lengthV1 }

// newV1 returns a new ID of the older kind.
func newV1() string { return "sb-" + strings.TrimPrefix(newID("sb"), "sb-01")[:lengthV1] }

func (c *controlPlane) SandboxCreate(_ context.Context, req *pb.SandboxCreateRequest) (*pb.SandboxCreateResponse, error) {
	sb, err := c.create(newV1(), pb.SandboxCreateV2Request_builder{
		AppId: req.GetAppId(), Definition: req.GetDefinition(), Tags: req.GetTags(),
	}.Build())
	if err != nil {
		return nil, err
	}
	return pb.SandboxCreateResponse_builder{SandboxId: sb.id}.Build(), nil
}

// SandboxGetTaskId is the older form of SandboxGetTaskIdV2.
func (c *controlPlane) SandboxGetTaskId(ctx context.Context, req *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse, error) { //nolint:revive // the protocol's name
	return c.SandboxGetTaskIdV2(ctx, req)
}

// TaskGetCommandRouterAccess is the older form of SandboxGetCommandRouterAccess, by the task's
// ID.
func (c *controlPlane) TaskGetCommandRouterAccess(_ context.Context, req *pb.TaskGetCommandRouterAccessRequest) (*pb.TaskGetCommandRouterAccessResponse, error) {
	for _, sb := range c.list() {
		if sb.task == req.GetTaskId() {
			return pb.TaskGetCommandRouterAccessResponse_builder{Jwt: sb.token(), Url: c.routerURL()}.Build(), nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "Task '%s' not found", req.GetTaskId())
}

// SandboxWait is the older form of SandboxWaitV2.
func (c *controlPlane) SandboxWait(ctx context.Context, req *pb.SandboxWaitRequest) (*pb.SandboxWaitResponse, error) {
	return c.SandboxWaitV2(ctx, req)
}

// SandboxTerminate is the older form of SandboxTerminateV2.
func (c *controlPlane) SandboxTerminate(ctx context.Context, req *pb.SandboxTerminateRequest) (*pb.SandboxTerminateResponse, error) {
	return c.SandboxTerminateV2(ctx, req)
}

// SandboxList is the older form of SandboxListV2.
func (c *controlPlane) SandboxList(ctx context.Context, req *pb.SandboxListRequest) (*pb.SandboxListResponse, error) {
	return c.SandboxListV2(ctx, req)
}

// SandboxTagsSet is the older form of SandboxTagsSetV2.
func (c *controlPlane) SandboxTagsSet(ctx context.Context, req *pb.SandboxTagsSetRequest) (*emptypb.Empty, error) {
	return c.SandboxTagsSetV2(ctx, req)
}

// SandboxTagsGet is the older form of SandboxTagsGetV2.
func (c *controlPlane) SandboxTagsGet(ctx context.Context, req *pb.SandboxTagsGetRequest) (*pb.SandboxTagsGetResponse, error) {
	return c.SandboxTagsGetV2(ctx, req)
}

// SandboxGetTunnels is the older form of SandboxGetTunnelsV2.
func (c *controlPlane) SandboxGetTunnels(ctx context.Context, req *pb.SandboxGetTunnelsRequest) (*pb.SandboxGetTunnelsResponse, error) {
	return c.SandboxGetTunnelsV2(ctx, req)
}

// SandboxCreateConnectToken is the older form of SandboxCreateConnectTokenV2.
func (c *controlPlane) SandboxCreateConnectToken(ctx context.Context, req *pb.SandboxCreateConnectTokenRequest) (*pb.SandboxCreateConnectTokenResponse, error) {
	return c.SandboxCreateConnectTokenV2(ctx, req)
}

// SandboxStdinWrite writes to the entrypoint. The index counts the calls: a repeated index is
// not written again.
func (c *controlPlane) SandboxStdinWrite(ctx context.Context, req *pb.SandboxStdinWriteRequest) (*pb.SandboxStdinWriteResponse, error) {
	sb, err := c.sandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	if sb.entrypoint == nil {
		return nil, status.Error(codes.FailedPrecondition, "the Sandbox has no command that reads stdin")
	}
	sb.saving.Lock()
	defer sb.saving.Unlock()
	if req.GetIndex() <= sb.stdinIndex {
		return &pb.SandboxStdinWriteResponse{}, nil
	}
	accepted, _ := sb.entrypoint.status()
	if err := sb.entrypoint.write(ctx, accepted, req.GetInput(), req.GetEof()); err != nil {
		return nil, err
	}
	sb.stdinIndex = req.GetIndex()
	return &pb.SandboxStdinWriteResponse{}, nil
}

// SandboxGetLogs streams the output of the entrypoint on one of its streams.
func (c *controlPlane) SandboxGetLogs(req *pb.SandboxGetLogsRequest, stream grpc.ServerStreamingServer[pb.TaskLogsBatch]) error {
	sb, err := c.sandbox(req.GetSandboxId())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(stream.Context(), time.Duration(req.GetTimeout()*float32(time.Second)))
	defer cancel()
	if sb.entrypoint != nil {
		s := sb.entrypoint.stdout
		if req.GetFileDescriptor() == pb.FileDescriptor_FILE_DESCRIPTOR_STDERR {
			s = sb.entrypoint.stderr
		}
		var offset int64
		_, _ = fmt.Sscan(req.GetLastEntryId(), &offset) // an ID of ours, else the beginning
		err := s.drain(ctx, offset, func(data []byte, at int64) error {
			return stream.Send(pb.TaskLogsBatch_builder{
				EntryId: fmt.Sprint(at + int64(len(data))),
				Items:   []*pb.TaskLogs{pb.TaskLogs_builder{Data: string(data), FileDescriptor: req.GetFileDescriptor()}.Build()},
			}.Build())
		})
		if err != nil && stream.Context().Err() == nil && ctx.Err() != nil {
			return nil // timeout: the client calls again
		}
		if err != nil {
			return err
		}
	} else {
		select {
		case <-sb.ended:
		case <-ctx.Done():
			return stream.Context().Err()
		}
	}
	return stream.Send(pb.TaskLogsBatch_builder{Eof: true}.Build())
}
