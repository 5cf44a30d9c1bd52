package testmodal

import (
	"context"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (c *controlPlane) SandboxCreateV2(_ context.Context, req *pb.SandboxCreateV2Request) (*pb.SandboxCreateV2Response, error) {
	sb, err := c.create(newID("sb"), req)
	if err != nil {
		return nil, err
	}
	return pb.SandboxCreateV2Response_builder{
		SandboxId: sb.id, TaskId: sb.task, Tunnels: sb.tunnelData(true),
		CommandRouterAccess: pb.CommandRouterAccess_builder{Jwt: sb.token(), Url: c.routerURL()}.Build(),
	}.Build(), nil
}

// create starts a sandbox if the request is valid.
func (c *controlPlane) create(id string, req *pb.SandboxCreateV2Request) (*sandbox, error) {
	def := req.GetDefinition()
	if err := checkDefinition(def, req.GetTags()); err != nil {
		return nil, err
	}
	if !c.knowsApp(req.GetAppId()) {
		return nil, status.Errorf(codes.NotFound, "App '%s' not found", req.GetAppId())
	}
	img, err := c.images.get(def.GetImageId())
	if err != nil {
		return nil, err
	}
	if img.partial {
		return nil, invalid("Image '%s' is one of a directory and cannot be run", img.id)
	}
	env, err := c.secretEnv(def.GetSecretIds(), req.GetSecretSources())
	if err != nil {
		return nil, err
	}
	for name, value := range def.GetEnvironmentVariables().GetContents() {
		env[name] = value
	}
	c.creating.Lock() // so that two sandboxes cannot get the same name
	defer c.creating.Unlock()
	running := 0
	for _, other := range c.list() {
		if !other.runs() {
			continue
		}
		running++
		if def.GetName() != "" && other.app == req.GetAppId() && other.nameNow() == def.GetName() {
			return nil, status.Errorf(codes.AlreadyExists, "Sandbox with name '%s' already exists in this App", def.GetName())
		}
	}
	if quota := c.faults.sandboxes(); quota > 0 && running >= quota {
		return nil, status.Errorf(codes.ResourceExhausted, "Workspace limit of %d concurrent Sandboxes reached", quota)
	}
	sb, err := c.newSandbox(id, req, img, env)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sandboxes = append(c.sandboxes, sb)
	return sb, nil
}

func (s *Server) knowsApp(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, known := range s.apps {
		if known == id {
			return true
		}
	}
	return false
}

// runs reports whether the sandbox has no result yet.
func (sb *sandbox) runs() bool {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.result == nil
}

func (sb *sandbox) nameNow() string {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.name
}

func (c *controlPlane) SandboxGetTaskIdV2(_ context.Context, req *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse, error) { //nolint:revive // the protocol's name
	sb, err := c.sandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	return pb.SandboxGetTaskIdResponse_builder{TaskId: &sb.task}.Build(), nil
}

func (c *controlPlane) SandboxGetCommandRouterAccess(_ context.Context, req *pb.SandboxGetCommandRouterAccessRequest) (*pb.SandboxGetCommandRouterAccessResponse, error) {
	sb, err := c.sandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	return pb.SandboxGetCommandRouterAccessResponse_builder{Jwt: sb.token(), Url: c.routerURL()}.Build(), nil
}

// SandboxWaitV2 waits for the sandbox's result. It returns the result only after the sandbox
// has been cleaned up.
func (c *controlPlane) SandboxWaitV2(ctx context.Context, req *pb.SandboxWaitRequest) (*pb.SandboxWaitResponse, error) {
	sb, err := c.sandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	select {
	case <-sb.cleanedUp: // even with a zero timeout
		return pb.SandboxWaitResponse_builder{Result: sb.result}.Build(), nil
	default:
	}
	timer := time.NewTimer(time.Duration(req.GetTimeout() * float32(time.Second)))
	defer timer.Stop()
	select {
	case <-sb.cleanedUp:
		return pb.SandboxWaitResponse_builder{Result: sb.result}.Build(), nil
	case <-timer.C:
		return &pb.SandboxWaitResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.ctx.Done():
		return nil, status.Error(codes.Unavailable, "the server ends")
	}
}

func (c *controlPlane) SandboxTerminateV2(_ context.Context, req *pb.SandboxTerminateRequest) (*pb.SandboxTerminateResponse, error) {
	sb, err := c.sandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	answer := pb.SandboxTerminateResponse_builder{}
	if !sb.runs() {
		<-sb.cleanedUp
		answer.ExistingResult = sb.result
	}
	sb.end(result(pb.GenericResult_GENERIC_STATUS_TERMINATED))
	<-sb.cleanedUp
	return answer.Build(), nil
}

func (c *controlPlane) SandboxGetFromNameV2(_ context.Context, req *pb.SandboxGetFromNameRequest) (*pb.SandboxGetFromNameResponse, error) {
	return c.byName(req, false)
}

// SandboxGetFromName returns a sandbox of the older kind by its name.
func (c *controlPlane) SandboxGetFromName(_ context.Context, req *pb.SandboxGetFromNameRequest) (*pb.SandboxGetFromNameResponse, error) {
	return c.byName(req, true)
}

func (c *controlPlane) byName(req *pb.SandboxGetFromNameRequest, v1 bool) (*pb.SandboxGetFromNameResponse, error) {
	if err := c.checkEnvironment(req.GetEnvironmentName()); err != nil {
		return nil, err
	}
	c.mu.Lock()
	app, ok := c.apps[req.GetAppName()]
	c.mu.Unlock()
	var found *sandbox
	for _, sb := range c.list() {
		if ok && sb.app == app && isV1(sb.id) == v1 && sb.nameNow() == req.GetSandboxName() && (sb.runs() || req.GetIncludeTerminated()) {
			found = sb
		}
	}
	if found == nil {
		return nil, status.Errorf(codes.NotFound, "Sandbox with name '%s' not found in App '%s'", req.GetSandboxName(), req.GetAppName())
	}
	return pb.SandboxGetFromNameResponse_builder{SandboxId: found.id}.Build(), nil
}

func (c *controlPlane) SandboxSetName(_ context.Context, req *pb.SandboxSetNameRequest) (*pb.SandboxSetNameResponse, error) {
	sb, err := c.sandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	if !knownName.MatchString(req.GetName()) {
		return nil, invalid("Invalid Sandbox name: %s", req.GetName())
	}
	c.creating.Lock()
	defer c.creating.Unlock()
	for _, other := range c.list() {
		if other != sb && other.app == sb.app && other.runs() && other.nameNow() == req.GetName() {
			return nil, status.Errorf(codes.AlreadyExists, "Sandbox with name '%s' already exists in this App", req.GetName())
		}
	}
	return &pb.SandboxSetNameResponse{}, sb.alive(func() error {
		if sb.name != "" {
			return status.Errorf(codes.FailedPrecondition, "Sandbox already has the name '%s'", sb.name)
		}
		sb.name = req.GetName()
		return nil
	})
}

func (c *controlPlane) SandboxGetTunnelsV2(_ context.Context, req *pb.SandboxGetTunnelsRequest) (*pb.SandboxGetTunnelsResponse, error) {
	sb, err := c.sandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	return pb.SandboxGetTunnelsResponse_builder{
		Result: result(pb.GenericResult_GENERIC_STATUS_SUCCESS), Tunnels: sb.tunnelData(false),
	}.Build(), nil
}

func (c *controlPlane) SandboxCreateConnectTokenV2(_ context.Context, req *pb.SandboxCreateConnectTokenRequest) (*pb.SandboxCreateConnectTokenResponse, error) {
	sb, err := c.sandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	return pb.SandboxCreateConnectTokenResponse_builder{
		Url: "https://" + sb.id + ".test.modal.host", Token: newJWT(sb.id, time.Now().Add(time.Hour)),
	}.Build(), nil
}

// SandboxGetExitSnapshotV2 waits for the snapshot that is taken when a sandbox ends.
func (c *controlPlane) SandboxGetExitSnapshotV2(ctx context.Context, req *pb.SandboxGetExitSnapshotRequest) (*pb.SandboxGetExitSnapshotResponse, error) {
	sb, err := c.sandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	if !sb.wantsExitSnapshot() {
		return nil, invalid("Exit snapshot is not enabled for this sandbox")
	}
	answer := pb.SandboxGetExitSnapshotResponse_builder{}
	timer := time.NewTimer(time.Duration(req.GetTimeout() * float32(time.Second)))
	defer timer.Stop()
	select {
	case <-sb.cleanedUp:
		answer.Success = pb.SandboxGetExitSnapshotResponse_Success_builder{ImageId: sb.atExit}.Build()
	case <-timer.C:
		answer.Pending = &pb.SandboxGetExitSnapshotResponse_Pending{}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return answer.Build(), nil
}

// wantsExitSnapshot reports whether a snapshot is taken when the sandbox ends.
func (sb *sandbox) wantsExitSnapshot() bool {
	return sb.definition.GetExperimentalOptionsV2()["enable_exit_snapshot"] == "true"
}
