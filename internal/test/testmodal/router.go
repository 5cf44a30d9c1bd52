package testmodal

import (
	"context"
	"maps"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// router is the command router, the service that runs commands in the sandboxes.
type router struct {
	pb.UnimplementedTaskCommandRouterServer
	*Server
}

// task returns the sandbox of a task. The call must carry a token of the task.
func (r *router) task(ctx context.Context, id string) (*sandbox, error) {
	for _, sb := range r.list() {
		if sb.task == id && sb.admits(ctx) {
			return sb, nil
		}
	}
	return nil, status.Error(codes.Unauthenticated, "the token is not one of this task, or has expired")
}

// execution returns a command by its ID.
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

// live returns the sandbox of a task that has not ended.
func (r *router) live(ctx context.Context, id string) (*sandbox, error) {
	sb, err := r.task(ctx, id)
	if err == nil && !sb.runs() {
		err = errEnded
	}
	return sb, err
}

func (r *router) TaskExecStart(ctx context.Context, req *pb.TaskExecStartRequest) (*pb.TaskExecStartResponse, error) {
	sb, err := r.live(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	if len(req.GetCommandArgs()) == 0 || req.GetExecId() == "" {
		return nil, invalid("a command and an id are needed")
	}
	own, err := r.secretEnv(req.GetSecretIds(), req.GetSecretSources())
	if err != nil {
		return nil, err
	}
	env := maps.Clone(sb.env)
	maps.Copy(env, own)
	maps.Copy(env, req.GetEnv())
	dir := req.GetWorkdir()
	if dir == "" {
		dir = sb.workdir()
	}
	err = sb.execute(req.GetExecId(), command{
		args: req.GetCommandArgs(), env: env, dir: dir, timeout: time.Duration(req.GetTimeoutSecs()) * time.Second,
		stdout: req.GetStdoutConfig() == pb.TaskExecStdoutConfig_TASK_EXEC_STDOUT_CONFIG_PIPE,
		stderr: req.GetStderrConfig() == pb.TaskExecStderrConfig_TASK_EXEC_STDERR_CONFIG_PIPE,
		pty:    terminal(req.GetPtyInfo()),
	})
	if err != nil {
		return nil, err
	}
	return &pb.TaskExecStartResponse{}, nil
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
	case <-r.ctx.Done():
		return nil, status.Error(codes.Unavailable, "the server ends")
	}
	answer := pb.TaskExecWaitResponse_builder{}
	answer.Code, answer.Signal = e.exit()
	return answer.Build(), nil
}

func (r *router) TaskExecPoll(ctx context.Context, req *pb.TaskExecPollRequest) (*pb.TaskExecPollResponse, error) {
	e, err := r.execution(ctx, req.GetTaskId(), req.GetExecId())
	if err != nil {
		return nil, err
	}
	answer := pb.TaskExecPollResponse_builder{}
	select {
	case <-e.done:
		answer.Code, answer.Signal = e.exit()
	default:
	}
	return answer.Build(), nil
}

// exit returns the exit code or the signal of a command, in the protocol's format.
func (e *execution) exit() (code, signal *int32) {
	if e.signal != 0 {
		return nil, &e.signal
	}
	return &e.code, nil
}
