package testmodal

import (
	"context"
	"errors"
	"io"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (r *router) TaskExecStdioRead(req *pb.TaskExecStdioReadRequest, stream grpc.ServerStreamingServer[pb.TaskExecStdioReadResponse]) error {
	e, err := r.execution(stream.Context(), req.GetTaskId(), req.GetExecId())
	if err != nil {
		return err
	}
	s := e.stdout
	if req.GetFileDescriptor() == pb.TaskExecStdioFileDescriptor_TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR {
		s = e.stderr
	}
	if s == nil {
		return nil
	}
	return s.drain(stream.Context(), int64(req.GetOffset()), func(data []byte, _ int64) error { // an offset
		return stream.Send(pb.TaskExecStdioReadResponse_builder{Data: data}.Build())
	})
}

func (r *router) TaskExecStdinWrite(ctx context.Context, req *pb.TaskExecStdinWriteRequest) (*pb.TaskExecStdinWriteResponse, error) {
	e, err := r.execution(ctx, req.GetTaskId(), req.GetExecId())
	if err != nil {
		return nil, err
	}
	if err := e.write(ctx, req.GetOffset(), req.GetData(), req.GetEof()); err != nil {
		return nil, err
	}
	return &pb.TaskExecStdinWriteResponse{}, nil
}

// TaskExecStdinWriteStream writes until the message that marks the end. A stream that breaks
// before leaves stdin open.
func (r *router) TaskExecStdinWriteStream(stream grpc.ClientStreamingServer[pb.TaskExecStdinWriteStreamRequest, pb.TaskExecStdinWriteStreamResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if !first.HasStart() {
		return invalid("the first message must be a start")
	}
	start := first.GetStart()
	e, err := r.execution(stream.Context(), start.GetTaskId(), start.GetExecId())
	if err != nil {
		return err
	}
	offset := start.GetOffset()
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return status.Error(codes.Aborted, "the stream ended before its end was said")
		}
		if err != nil {
			return err
		}
		if err := e.write(stream.Context(), offset, msg.GetData(), msg.HasEnd()); err != nil {
			return err
		}
		offset += uint64(len(msg.GetData()))
		if msg.HasEnd() {
			return stream.SendAndClose(&pb.TaskExecStdinWriteStreamResponse{})
		}
	}
}

func (r *router) TaskExecStdinStatus(ctx context.Context, req *pb.TaskExecStdinStatusRequest) (*pb.TaskExecStdinStatusResponse, error) {
	e, err := r.execution(ctx, req.GetTaskId(), req.GetExecId())
	if err != nil {
		return nil, err
	}
	accepted, closed := e.evict()
	return pb.TaskExecStdinStatusResponse_builder{NumBytesWritten: accepted, Closed: closed}.Build(), nil
}

func (r *router) SandboxStdioReadV2(req *pb.SandboxStdioReadV2Request, stream grpc.ServerStreamingServer[pb.SandboxStdioReadV2Response]) error {
	sb, err := r.task(stream.Context(), req.GetTaskId())
	if err != nil {
		return err
	}
	if sb.entrypoint == nil { // a sandbox without an entrypoint writes nothing while it lives
		select {
		case <-sb.ended:
			return nil
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
	s := sb.entrypoint.stdout
	if req.GetFileDescriptor() == pb.SandboxStdioFileDescriptor_SANDBOX_STDIO_FILE_DESCRIPTOR_STDERR {
		s = sb.entrypoint.stderr
	}
	return s.drain(stream.Context(), int64(req.GetOffset()), func(data []byte, offset int64) error { // an offset
		return stream.Send(pb.SandboxStdioReadV2Response_builder{Data: data, StartingOffset: uint64(offset)}.Build()) // an offset
	})
}

func (r *router) SandboxStdinWriteV2(ctx context.Context, req *pb.SandboxStdinWriteV2Request) (*pb.SandboxStdinWriteV2Response, error) {
	sb, err := r.live(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	if sb.entrypoint == nil {
		return nil, status.Error(codes.FailedPrecondition, "the Sandbox has no command that reads stdin")
	}
	sb.active(1)
	defer sb.active(-1)
	if err := sb.entrypoint.write(ctx, req.GetOffset(), req.GetData(), req.GetEof()); err != nil {
		return nil, err
	}
	return &pb.SandboxStdinWriteV2Response{}, nil
}
