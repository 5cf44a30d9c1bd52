package testmodal

import pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

// Destroy ends a sandbox as the failure of a machine does, and returns when nothing
// of it is left.
func (s *Server) Destroy(id string) error {
	sb, err := s.sandbox(id)
	if err != nil {
		return err
	}
	sb.end(pb.GenericResult_builder{
		Status: pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE, Exception: "the machine has failed",
	}.Build())
	<-sb.gone
	return nil
}
