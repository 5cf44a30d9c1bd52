package testmodal

import (
	"context"
	"slices"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// controlPlane is the service that creates, finds and ends objects.
type controlPlane struct {
	pb.UnimplementedModalClientServer
	*Server
}

// creates reports whether a call creates an object that it does not find.
func creates(kind pb.ObjectCreationType) bool {
	return kind != pb.ObjectCreationType_OBJECT_CREATION_TYPE_UNSPECIFIED
}

// AddEnvironment creates an environment besides the default one. All environments share the
// same objects.
func (s *Server) AddEnvironment(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names["environment/"+name] = newID("en")
}

// checkEnvironment returns an error for an unknown environment. Empty means the default one.
func (s *Server) checkEnvironment(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.names["environment/"+name]; name != "" && !ok {
		return status.Errorf(codes.NotFound, "Environment '%s' not found", name)
	}
	return nil
}

func (c *controlPlane) AuthTokenGet(context.Context, *pb.AuthTokenGetRequest) (*pb.AuthTokenGetResponse, error) {
	return pb.AuthTokenGetResponse_builder{Token: c.tokens.auth}.Build(), nil
}

func (c *controlPlane) ClientHello(context.Context, *emptypb.Empty) (*pb.ClientHelloResponse, error) {
	return &pb.ClientHelloResponse{}, nil
}

func (c *controlPlane) EnvironmentGetOrCreate(_ context.Context, req *pb.EnvironmentGetOrCreateRequest) (*pb.EnvironmentGetOrCreateResponse, error) {
	if err := c.checkEnvironment(req.GetDeploymentName()); err != nil {
		return nil, err
	}
	return pb.EnvironmentGetOrCreateResponse_builder{
		EnvironmentId: "en-01", Metadata: pb.EnvironmentMetadata_builder{
			Name:     environmentName,
			Settings: pb.EnvironmentSettings_builder{ImageBuilderVersion: "2025.06"}.Build(),
		}.Build(),
	}.Build(), nil
}

func (c *controlPlane) AppGetOrCreate(_ context.Context, req *pb.AppGetOrCreateRequest) (*pb.AppGetOrCreateResponse, error) {
	if err := c.checkEnvironment(req.GetEnvironmentName()); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	id, ok := c.apps[req.GetAppName()]
	if !ok {
		if !creates(req.GetObjectCreationType()) {
			return nil, status.Errorf(codes.NotFound, "App '%s' not found in environment '%s'", req.GetAppName(), environmentName)
		}
		id = newID("ap")
		c.apps[req.GetAppName()] = id
	}
	return pb.AppGetOrCreateResponse_builder{AppId: id}.Build(), nil
}

// list returns the sandboxes in the order of their creation.
func (s *Server) list() []*sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sandboxes)
}

// sandbox returns a sandbox by its ID.
func (s *Server) sandbox(id string) (*sandbox, error) {
	for _, sb := range s.list() {
		if sb.id == id {
			return sb, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "Sandbox with ID '%s' not found", id)
}
