package testmodal

import (
	"context"
	"net"
	"path"
	"strconv"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// probeInterval is the default interval of readiness probes.
const probeInterval = 100 * time.Millisecond

// SandboxWaitUntilReady tries the sandbox's probe until it succeeds.
func (r *router) SandboxWaitUntilReady(ctx context.Context, req *pb.SandboxWaitUntilReadyTcrRequest) (*pb.SandboxWaitUntilReadyTcrResponse, error) {
	sb, err := r.live(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	probe := sb.definition.GetReadinessProbe()
	if probe == nil {
		return nil, invalid("the Sandbox has no readiness probe")
	}
	interval := probeInterval
	if probe.GetIntervalMs() > 0 {
		interval = time.Duration(probe.GetIntervalMs()) * time.Millisecond
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		at, err := sb.probe(ctx, probe)
		if err != nil {
			return nil, err
		}
		if !at.IsZero() {
			return pb.SandboxWaitUntilReadyTcrResponse_builder{ReadyAt: seconds(at)}.Build(), nil
		}
		select {
		case <-tick.C:
		case <-sb.ended:
			return nil, errEnded
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// probe runs the probe once, unless it has succeeded before. It returns the time of the first
// success, or zero.
func (sb *sandbox) probe(ctx context.Context, probe *pb.Probe) (time.Time, error) {
	sb.mu.Lock()
	at := sb.ready
	sb.mu.Unlock()
	if !at.IsZero() {
		return at, nil
	}
	ok, err := sb.tryPort(ctx, probe.GetTcpPort()), error(nil)
	if probe.GetExecCommand() != nil {
		ok, err = sb.tryCommand(ctx, probe.GetExecCommand().GetArgv())
	}
	if !ok || err != nil {
		return time.Time{}, err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.ready = time.Now()
	return sb.ready, nil
}

// tryPort reports whether a process listens on a port of the sandbox, whose network is this
// machine's.
func (sb *sandbox) tryPort(ctx context.Context, port uint32) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// tryCommand reports whether a command succeeds.
func (sb *sandbox) tryCommand(ctx context.Context, args []string) (bool, error) {
	var e *execution
	err := sb.alive(func() (err error) {
		e, err = sb.start(command{args: args, env: sb.env, dir: sb.workdir()})
		return err
	})
	if err != nil {
		return false, err
	}
	defer e.free()
	select {
	case <-e.done:
		return e.code == 0 && e.signal == 0, nil
	case <-sb.ended:
		e.kill()
		return false, errEnded
	case <-ctx.Done():
		e.kill()
		return false, ctx.Err()
	}
}

// once saves an image, or returns the image that was saved with the same key.
func (sb *sandbox) once(key string, save func() (*image, error)) (string, error) {
	sb.saving.Lock()
	defer sb.saving.Unlock()
	if id := sb.saved[key]; id != "" && key != "" {
		return id, nil
	}
	var img *image
	if err := sb.alive(func() (err error) { img, err = save(); return err }); err != nil {
		return "", err
	}
	sb.saved[key] = img.id
	return img.id, nil
}

func (r *router) TaskSnapshotFilesystem(ctx context.Context, req *pb.TaskSnapshotFilesystemRequest) (*pb.TaskSnapshotFilesystemResponse, error) {
	sb, err := r.live(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	id, err := sb.once(req.GetSnapshotId(), sb.snapshot)
	if err != nil {
		return nil, err
	}
	return pb.TaskSnapshotFilesystemResponse_builder{ImageId: id}.Build(), nil
}

func (r *router) TaskSnapshotDirectory(ctx context.Context, req *pb.TaskSnapshotDirectoryRequest) (*pb.TaskSnapshotDirectoryResponse, error) {
	sb, err := r.live(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	id, err := sb.once(req.GetSnapshotId(), func() (*image, error) { return sb.snapshotDirectory(string(req.GetPath())) })
	if err != nil {
		return nil, invalid("cannot snapshot the directory: %v", err)
	}
	return pb.TaskSnapshotDirectoryResponse_builder{ImageId: id}.Build(), nil
}

// TaskSnapshotMemory returns an error: processes of this machine cannot be stored.
func (r *router) TaskSnapshotMemory(ctx context.Context, req *pb.TaskSnapshotMemoryRequest) (*pb.TaskSnapshotMemoryResponse, error) {
	sb, err := r.live(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	if !sb.definition.GetEnableSnapshot() {
		return nil, status.Error(codes.FailedPrecondition, "memory snapshots are not enabled for this Sandbox")
	}
	return nil, status.Error(codes.Unimplemented, "this server of the tests cannot snapshot memory")
}

func (r *router) TaskMountDirectory(ctx context.Context, req *pb.TaskMountDirectoryRequest) (*emptypb.Empty, error) {
	sb, err := r.live(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	target := string(req.GetPath())
	if !path.IsAbs(target) || path.Clean(target) == "/" {
		return nil, invalid("cannot mount at %q", target)
	}
	var img *image
	if req.GetImageId() != "" {
		if img, err = r.images.get(req.GetImageId()); err != nil {
			return nil, err
		}
	}
	return &emptypb.Empty{}, sb.alive(func() error {
		if err := sb.mountImage(target, img); err != nil {
			return invalid("cannot mount at %q: %v", target, err)
		}
		sb.mounted[path.Clean(target)] = true
		return nil
	})
}

func (r *router) TaskUnmountDirectory(ctx context.Context, req *pb.TaskUnmountDirectoryRequest) (*emptypb.Empty, error) {
	sb, err := r.live(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	target := path.Clean(string(req.GetPath()))
	return &emptypb.Empty{}, sb.alive(func() error {
		if !sb.mounted[target] {
			return invalid("no image is mounted at %q", target)
		}
		delete(sb.mounted, target)
		return sb.unmountImage(target)
	})
}

func (r *router) TaskReloadVolumes(ctx context.Context, req *pb.TaskReloadVolumesRequest) (*pb.TaskReloadVolumesResponse, error) {
	sb, err := r.live(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	err = sb.alive(func() error {
		for _, m := range sb.volumes {
			if err := m.commit(); err != nil {
				return err
			}
			if err := m.reload(); err != nil {
				return err
			}
		}
		return nil
	})
	return &pb.TaskReloadVolumesResponse{}, err
}

// TaskSetNetworkAccess stores a policy but does not enforce it.
func (r *router) TaskSetNetworkAccess(ctx context.Context, req *pb.TaskSetNetworkAccessRequest) (*pb.TaskSetNetworkAccessResponse, error) {
	sb, err := r.live(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	if err := checkNetwork(req.GetNetworkAccess()); err != nil {
		return nil, err
	}
	return &pb.TaskSetNetworkAccessResponse{}, sb.alive(func() error {
		sb.network = req.GetNetworkAccess()
		return nil
	})
}

// TaskSetOutboundPolicy accepts a policy and ignores it.
func (r *router) TaskSetOutboundPolicy(ctx context.Context, req *pb.TaskSetExperimentalOutboundPolicyRequest) (*pb.TaskSetExperimentalOutboundPolicyResponse, error) {
	_, err := r.live(ctx, req.GetTaskId())
	return &pb.TaskSetExperimentalOutboundPolicyResponse{}, err
}
