package testmodal

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// router is the service that runs commands in the sandboxes.
type router struct {
	pb.UnimplementedTaskCommandRouterServer
	*Server
}

// task finds a task for a caller who holds its token.
func (r *router) task(ctx context.Context, id string) (*sandbox, error) {
	r.mu.Lock()
	sb := r.tasks[id]
	r.mu.Unlock()
	if sb == nil || header(ctx, "authorization") != "Bearer "+sb.jwt {
		return nil, status.Error(codes.Unauthenticated, "the token is not one of this task")
	}
	return sb, nil
}

// execution finds a command.
func (r *router) execution(ctx context.Context, task, id string) (*execution, error) {
	sb, err := r.task(ctx, task)
	if err != nil {
		return nil, err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if e := sb.execs[id]; e != nil {
		return e, nil
	}
	return nil, status.Errorf(codes.NotFound, "exec %s not found", id)
}

func (r *router) TaskExecStart(ctx context.Context, req *pb.TaskExecStartRequest) (*pb.TaskExecStartResponse, error) {
	sb, err := r.task(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.execs[req.GetExecId()] != nil {
		return &pb.TaskExecStartResponse{}, nil
	}
	if sb.result != nil {
		return nil, status.Error(codes.FailedPrecondition, "the sandbox has ended")
	}
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	for _, source := range req.GetSecretSources() {
		for name, value := range source.GetEnv().GetContents() {
			env = append(env, name+"="+value)
		}
	}
	e, err := sb.start(command{
		args: req.GetCommandArgs(), env: env, dir: req.GetWorkdir(),
		timeout: time.Duration(req.GetTimeoutSecs()) * time.Second,
		stdout:  req.GetStdoutConfig() == pb.TaskExecStdoutConfig_TASK_EXEC_STDOUT_CONFIG_PIPE,
		stderr:  req.GetStderrConfig() == pb.TaskExecStderrConfig_TASK_EXEC_STDERR_CONFIG_PIPE,
	})
	if err != nil {
		return nil, err
	}
	sb.execs[req.GetExecId()] = e
	return &pb.TaskExecStartResponse{}, nil
}

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
	return s.drain(stream.Context(), int64(req.GetOffset()), func(data []byte, _ int64) error {
		return stream.Send(pb.TaskExecStdioReadResponse_builder{Data: data}.Build())
	})
}

func (r *router) TaskExecStdinWrite(ctx context.Context, req *pb.TaskExecStdinWriteRequest) (*pb.TaskExecStdinWriteResponse, error) {
	e, err := r.execution(ctx, req.GetTaskId(), req.GetExecId())
	if err != nil {
		return nil, err
	}
	if err := e.write(req.GetOffset(), req.GetData(), req.GetEof()); err != nil {
		return nil, err
	}
	return &pb.TaskExecStdinWriteResponse{}, nil
}

func (r *router) TaskExecStdinWriteStream(stream grpc.ClientStreamingServer[pb.TaskExecStdinWriteStreamRequest, pb.TaskExecStdinWriteStreamResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	e, err := r.execution(stream.Context(), first.GetStart().GetTaskId(), first.GetStart().GetExecId())
	if err != nil {
		return err
	}
	offset := first.GetStart().GetOffset()
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := e.write(offset, msg.GetData(), msg.HasEnd()); err != nil {
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
	e.mu.Lock()
	defer e.mu.Unlock()
	return pb.TaskExecStdinStatusResponse_builder{NumBytesWritten: e.accepted, Closed: e.closed}.Build(), nil
}

func (r *router) TaskExecWait(ctx context.Context, req *pb.TaskExecWaitRequest) (*pb.TaskExecWaitResponse, error) {
	e, err := r.execution(ctx, req.GetTaskId(), req.GetExecId())
	if err != nil {
		return nil, err
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	code, signal := exitOf(e.exit)
	return pb.TaskExecWaitResponse_builder{Code: code, Signal: signal}.Build(), nil
}

// exitOf is an exit as the protocol says it.
func exitOf(w syscall.WaitStatus) (code, signal *int32) {
	n := int32(w.ExitStatus())
	if w.Signaled() {
		n = int32(w.Signal())
		return nil, &n
	}
	return &n, nil
}
