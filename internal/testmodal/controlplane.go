package testmodal

import (
	"context"
	"os"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// controlPlane is the service that makes and ends things.
type controlPlane struct {
	pb.UnimplementedModalClientServer
	*Server
}

func (c *controlPlane) AuthTokenGet(context.Context, *pb.AuthTokenGetRequest) (*pb.AuthTokenGetResponse, error) {
	return pb.AuthTokenGetResponse_builder{Token: c.tokens.auth}.Build(), nil
}

func (c *controlPlane) EnvironmentGetOrCreate(context.Context, *pb.EnvironmentGetOrCreateRequest) (*pb.EnvironmentGetOrCreateResponse, error) {
	return pb.EnvironmentGetOrCreateResponse_builder{
		EnvironmentId: "en-01", Metadata: pb.EnvironmentMetadata_builder{
			Name:     environmentName,
			Settings: pb.EnvironmentSettings_builder{ImageBuilderVersion: "2025.06"}.Build(),
		}.Build(),
	}.Build(), nil
}

func (c *controlPlane) AppGetOrCreate(_ context.Context, req *pb.AppGetOrCreateRequest) (*pb.AppGetOrCreateResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, ok := c.apps[req.GetAppName()]
	if !ok {
		if req.GetObjectCreationType() == pb.ObjectCreationType_OBJECT_CREATION_TYPE_UNSPECIFIED {
			return nil, status.Errorf(codes.NotFound, "App '%s' not found in environment '%s'", req.GetAppName(), environmentName)
		}
		id = newID("ap")
		c.apps[req.GetAppName()] = id
	}
	return pb.AppGetOrCreateResponse_builder{AppId: id}.Build(), nil
}

func (c *controlPlane) ImageGetOrCreate(context.Context, *pb.ImageGetOrCreateRequest) (*pb.ImageGetOrCreateResponse, error) {
	return pb.ImageGetOrCreateResponse_builder{
		ImageId: newID("im"),
		Result:  pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_SUCCESS}.Build(),
	}.Build(), nil
}

func (c *controlPlane) SandboxCreateV2(_ context.Context, req *pb.SandboxCreateV2Request) (*pb.SandboxCreateV2Response, error) {
	dir, err := os.MkdirTemp(c.dir, "sandbox-")
	if err != nil {
		return nil, err
	}
	sb := &sandbox{
		id: newID("sb"), task: newID("ta"), app: req.GetAppId(), dir: dir, definition: req.GetDefinition(),
		created: time.Now(), name: req.GetDefinition().GetName(), tags: req.GetTags(),
		execs: map[string]*execution{}, gone: make(chan struct{}), ended: make(chan struct{}),
	}
	sb.jwt = newJWT(sb.task, time.Now().Add(time.Hour))
	c.mu.Lock()
	c.sandboxes[sb.id], c.tasks[sb.task] = sb, sb
	c.mu.Unlock()
	return pb.SandboxCreateV2Response_builder{
		SandboxId: sb.id, TaskId: sb.task,
		CommandRouterAccess: pb.CommandRouterAccess_builder{Jwt: sb.jwt, Url: c.routerURL()}.Build(),
	}.Build(), nil
}

// sandbox finds a sandbox by its id.
func (c *controlPlane) sandbox(id string) (*sandbox, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if sb := c.sandboxes[id]; sb != nil {
		return sb, nil
	}
	return nil, status.Errorf(codes.NotFound, "Sandbox with ID '%s' not found", id)
}

func (c *controlPlane) SandboxGetTaskIdV2(_ context.Context, req *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse, error) { //nolint:revive // the protocol's name
	sb, err := c.sandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.result != nil {
		return pb.SandboxGetTaskIdResponse_builder{TaskResult: sb.result}.Build(), nil
	}
	return pb.SandboxGetTaskIdResponse_builder{TaskId: &sb.task}.Build(), nil
}

func (c *controlPlane) SandboxGetCommandRouterAccess(_ context.Context, req *pb.SandboxGetCommandRouterAccessRequest) (*pb.SandboxGetCommandRouterAccessResponse, error) {
	sb, err := c.sandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	return pb.SandboxGetCommandRouterAccessResponse_builder{Jwt: sb.jwt, Url: c.routerURL()}.Build(), nil
}

func (c *controlPlane) SandboxWaitV2(ctx context.Context, req *pb.SandboxWaitRequest) (*pb.SandboxWaitResponse, error) {
	sb, err := c.sandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(time.Duration(req.GetTimeout() * float32(time.Second)))
	defer timer.Stop()
	select {
	case <-sb.ended:
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return pb.SandboxWaitResponse_builder{Result: sb.result}.Build(), nil
}

func (c *controlPlane) SandboxTerminateV2(_ context.Context, req *pb.SandboxTerminateRequest) (*pb.SandboxTerminateResponse, error) {
	sb, err := c.sandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	sb.end(resultTerminated())
	<-sb.gone
	return &pb.SandboxTerminateResponse{}, nil
}
