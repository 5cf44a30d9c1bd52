package testmodal

import (
	"context"
	"maps"
	"os"
	"path/filepath"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// secret is a set of variables stored by the server.
type secret struct{ env map[string]string }

// AddSecret creates a named secret, as users do in Modal's dashboard.
func (s *Server) AddSecret(name string, env map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := newID("st")
	s.secrets[id], s.names["secret/"+name] = &secret{maps.Clone(env)}, id
}

// secretEnv returns the variables of secrets. Later secrets override earlier ones.
func (s *Server) secretEnv(ids []string, sources []*pb.SecretSource) (map[string]string, error) {
	env := map[string]string{}
	for _, id := range ids {
		if err := s.addSecret(env, id); err != nil {
			return nil, err
		}
	}
	for _, source := range sources {
		if !source.HasSecretId() {
			maps.Copy(env, source.GetEnv().GetContents())
		} else if err := s.addSecret(env, source.GetSecretId()); err != nil {
			return nil, err
		}
	}
	return env, nil
}

func (s *Server) addSecret(env map[string]string, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.secrets[id]
	if found == nil {
		return status.Errorf(codes.NotFound, "Secret '%s' not found", id)
	}
	maps.Copy(env, found.env)
	return nil
}

func (c *controlPlane) SecretGetOrCreate(_ context.Context, req *pb.SecretGetOrCreateRequest) (*pb.SecretGetOrCreateResponse, error) {
	if err := c.checkEnvironment(req.GetEnvironmentName()); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	name := "secret/" + req.GetDeploymentName()
	id, ok := c.names[name]
	if req.GetDeploymentName() == "" || !ok {
		if !creates(req.GetObjectCreationType()) {
			return nil, status.Errorf(codes.NotFound, "Secret '%s' not found in environment '%s'", req.GetDeploymentName(), environmentName)
		}
		id = newID("st")
		c.secrets[id] = &secret{maps.Clone(req.GetEnvDict())}
		if req.GetDeploymentName() != "" {
			c.names[name] = id
		}
	}
	for _, key := range req.GetRequiredKeys() {
		if _, ok := c.secrets[id].env[key]; !ok {
			return nil, status.Errorf(codes.FailedPrecondition, "Secret is missing key(s): %s", key)
		}
	}
	return pb.SecretGetOrCreateResponse_builder{SecretId: id}.Build(), nil
}

func (c *controlPlane) SecretDelete(_ context.Context, req *pb.SecretDeleteRequest) (*emptypb.Empty, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.secrets[req.GetSecretId()] == nil {
		return nil, status.Errorf(codes.NotFound, "Secret '%s' not found", req.GetSecretId())
	}
	delete(c.secrets, req.GetSecretId())
	maps.DeleteFunc(c.names, func(_, id string) bool { return id == req.GetSecretId() })
	return &emptypb.Empty{}, nil
}

// volume returns a volume by its ID.
func (s *Server) volume(id string) (*volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.volumes[id]; v != nil {
		return v, nil
	}
	return nil, status.Errorf(codes.NotFound, "Volume '%s' not found", id)
}

func (c *controlPlane) VolumeGetOrCreate(_ context.Context, req *pb.VolumeGetOrCreateRequest) (*pb.VolumeGetOrCreateResponse, error) {
	if err := c.checkEnvironment(req.GetEnvironmentName()); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	name := "volume/" + req.GetDeploymentName()
	id, ok := c.names[name]
	if req.GetDeploymentName() == "" || !ok {
		if !creates(req.GetObjectCreationType()) {
			return nil, status.Errorf(codes.NotFound, "Volume '%s' not found in environment '%s'", req.GetDeploymentName(), environmentName)
		}
		id = newID("vo")
		dir := filepath.Join(c.dir, "volumes", id)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		c.volumes[id] = &volume{id: id, dir: dir}
		if req.GetDeploymentName() != "" {
			c.names[name] = id
		}
	}
	return pb.VolumeGetOrCreateResponse_builder{VolumeId: id, Version: req.GetVersion()}.Build(), nil
}

func (c *controlPlane) VolumeHeartbeat(_ context.Context, req *pb.VolumeHeartbeatRequest) (*emptypb.Empty, error) {
	_, err := c.volume(req.GetVolumeId())
	return &emptypb.Empty{}, err
}

func (c *controlPlane) VolumeDelete(_ context.Context, req *pb.VolumeDeleteRequest) (*emptypb.Empty, error) {
	if _, err := c.volume(req.GetVolumeId()); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.volumes, req.GetVolumeId())
	maps.DeleteFunc(c.names, func(_, id string) bool { return id == req.GetVolumeId() })
	return &emptypb.Empty{}, nil
}

// AddProxy creates a named proxy, as users do in Modal's dashboard. No traffic goes through it.
func (s *Server) AddProxy(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names["proxy/"+name] = newID("pr")
}

func (c *controlPlane) ProxyGet(_ context.Context, req *pb.ProxyGetRequest) (*pb.ProxyGetResponse, error) {
	if err := c.checkEnvironment(req.GetEnvironmentName()); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	id, ok := c.names["proxy/"+req.GetName()]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "Proxy '%s' not found", req.GetName())
	}
	return pb.ProxyGetResponse_builder{Proxy: pb.Proxy_builder{ProxyId: id, Name: req.GetName()}.Build()}.Build(), nil
}
