package testmodal

import (
	"context"
	"fmt"
	"io"
	"maps"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// maxLogTail is how many bytes of a build's log its error contains.
const maxLogTail = 8 << 10

// ImageGetOrCreate starts a build, or finds an image with the same recipe. It does not wait for
// the build, but returns the result of a completed one.
func (c *controlPlane) ImageGetOrCreate(_ context.Context, req *pb.ImageGetOrCreateRequest) (*pb.ImageGetOrCreateResponse, error) {
	def := req.GetImage()
	if !c.knowsApp(req.GetAppId()) {
		return nil, status.Errorf(codes.NotFound, "App '%s' not found", req.GetAppId())
	}
	env, err := c.secretEnv(def.GetSecretIds(), nil)
	if err != nil {
		return nil, err
	}
	maps.Copy(env, def.GetBuildArgs())
	bases, ids := map[string]*image{}, map[string]string{}
	for _, base := range def.GetBaseImages() {
		img, err := c.images.get(base.GetImageId())
		if err != nil {
			return nil, err
		}
		bases[base.GetDockerTag()], ids[base.GetDockerTag()] = img, img.id
	}
	img, fresh := c.images.claim(recipeKey(def.GetDockerfileCommands(), ids, env), req.GetForceBuild())
	if fresh {
		c.running.Go(func() {
			defer close(img.built)
			defer img.log.finish()
			img.err = c.build(img, def.GetDockerfileCommands(), bases, env)
			if img.err != nil {
				_, _ = fmt.Fprintln(img.log, "Error:", img.err)
			}
		})
	}
	answer := pb.ImageGetOrCreateResponse_builder{ImageId: img.id}
	select {
	case <-img.built:
		answer.Result = img.result()
	default:
	}
	return answer.Build(), nil
}

// claim returns the image of a recipe, or adds an image that the caller must build.
func (m *images) claim(recipe string, force bool) (img *image, fresh bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if img := m.recipe[recipe]; img != nil && !force && !img.failed() {
		return img, false
	}
	img = &image{id: newID("im"), built: make(chan struct{}), log: newSpool(m.dir)}
	m.byID[img.id], m.recipe[recipe] = img, img
	return img, true
}

// failed reports whether a build is complete and has failed.
func (img *image) failed() bool {
	select {
	case <-img.built:
		return img.err != nil
	default:
		return false
	}
}

// result returns the result of a completed build.
func (img *image) result() *pb.GenericResult {
	if img.err == nil {
		return result(pb.GenericResult_GENERIC_STATUS_SUCCESS)
	}
	return pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_FAILURE, Exception: img.log.tail(maxLogTail)}.Build()
}

// free releases the files of the logs.
func (m *images) free() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, img := range m.byID {
		if img.log != nil {
			img.log.free()
		}
	}
}

// ImageJoinStreaming streams the log of a build, and then its result.
func (c *controlPlane) ImageJoinStreaming(req *pb.ImageJoinStreamingRequest, stream grpc.ServerStreamingServer[pb.ImageJoinStreamingResponse]) error {
	c.images.mu.Lock()
	img := c.images.byID[req.GetImageId()]
	c.images.mu.Unlock()
	if img == nil {
		return status.Errorf(codes.NotFound, "Image '%s' not found", req.GetImageId())
	}
	ctx, cancel := context.WithTimeout(stream.Context(), time.Duration(req.GetTimeout()*float32(time.Second)))
	defer cancel()
	var offset int64
	if req.GetLastEntryId() != "" {
		_, _ = fmt.Sscan(req.GetLastEntryId(), &offset) // an ID of ours, else the beginning
	}
	if img.log != nil {
		err := img.log.drain(ctx, offset, func(data []byte, at int64) error {
			return stream.Send(pb.ImageJoinStreamingResponse_builder{
				EntryId: fmt.Sprint(at + int64(len(data))), TaskLogs: []*pb.TaskLogs{pb.TaskLogs_builder{Data: string(data)}.Build()},
			}.Build())
		})
		if err != nil && ctx.Err() != nil && stream.Context().Err() == nil {
			return nil // timeout: the client calls again
		}
		if err != nil && err != io.EOF { //nolint:errorlint // drain returns it as it is
			return err
		}
	}
	<-img.built
	return stream.Send(pb.ImageJoinStreamingResponse_builder{Result: img.result()}.Build())
}

func (c *controlPlane) ImageFromId(_ context.Context, req *pb.ImageFromIdRequest) (*pb.ImageFromIdResponse, error) { //nolint:revive // the protocol's name
	img, err := c.images.get(req.GetImageId())
	if err != nil {
		return nil, err
	}
	return pb.ImageFromIdResponse_builder{ImageId: img.id}.Build(), nil
}

func (c *controlPlane) ImageGetByTag(_ context.Context, req *pb.ImageGetByTagRequest) (*pb.ImageGetByTagResponse, error) {
	c.images.mu.Lock()
	defer c.images.mu.Unlock()
	id, ok := c.images.named[req.GetTag()]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "Image '%s' not found", req.GetTag())
	}
	return pb.ImageGetByTagResponse_builder{ImageId: id}.Build(), nil
}

func (c *controlPlane) ImagePublish(_ context.Context, req *pb.ImagePublishRequest) (*pb.ImagePublishResponse, error) {
	img, err := c.images.get(req.GetImageId())
	if err != nil {
		return nil, err
	}
	c.images.mu.Lock()
	defer c.images.mu.Unlock()
	c.images.named[req.GetTag()] = img.id
	return pb.ImagePublishResponse_builder{ImageId: img.id}.Build(), nil
}

func (c *controlPlane) ImageDelete(_ context.Context, req *pb.ImageDeleteRequest) (*emptypb.Empty, error) {
	img, err := c.images.get(req.GetImageId())
	if err != nil {
		return nil, err
	}
	c.images.mu.Lock()
	defer c.images.mu.Unlock()
	delete(c.images.byID, img.id)
	maps.DeleteFunc(c.images.recipe, func(_ string, other *image) bool { return other == img })
	maps.DeleteFunc(c.images.named, func(_, id string) bool { return id == img.id })
	if img.log != nil {
		img.log.free()
	}
	return &emptypb.Empty{}, nil
}
