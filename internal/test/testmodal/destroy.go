package testmodal

import pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

// Destroy ends a sandbox as a machine failure does, and waits until it has been cleaned up.
func (s *Server) Destroy(id string) error {
	return s.endWith(id, pb.GenericResult_builder{
		Status: pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE, Exception: "the machine has failed",
	}.Build())
}

// Outlive ends a sandbox now as its timeout would, and waits until it has been cleaned up.
func (s *Server) Outlive(id string) error {
	return s.endWith(id, result(pb.GenericResult_GENERIC_STATUS_TIMEOUT))
}

func (s *Server) endWith(id string, result *pb.GenericResult) error {
	sb, err := s.sandbox(id)
	if err != nil {
		return err
	}
	sb.end(result)
	<-sb.cleanedUp
	return nil
}
