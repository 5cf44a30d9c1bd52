package modal

import (
	"encoding/json"
	"testing"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
)

// FuzzDescribe lists a sandbox with any tags and any answer of Modal.
func FuzzDescribe(f *testing.F) {
	f.Add("sb-1", "name", "im-1", 1.5e9, "me", "boot.1.2.3", "1700000000", "yes", int32(1))
	f.Add("", "", "", -1e300, "", "...", "99999999999999999", "soon", int32(99))
	f.Fuzz(func(t *testing.T, id, name, image string, created float64, host, owner, until, keep string, status int32) {
		var tags []*pb.SandboxTag
		for key, value := range map[string]string{tagHost: host, tagOwner: owner, tagExpires: until, tagKeep: keep, tagSession: host} {
			tags = append(tags, pb.SandboxTag_builder{TagName: key, TagValue: value}.Build())
		}
		info := describe(pb.SandboxInfo_builder{
			Id: id, Name: name, ImageId: image, CreatedAt: created, Tags: tags,
			TaskInfo: pb.TaskInfo_builder{Result: pb.GenericResult_builder{Status: pb.GenericResult_GenericStatus(status)}.Build()}.Build(),
		}.Build())
		if _, err := json.Marshal(info); err != nil {
			t.Errorf("%+v: %v", info, err)
		}
	})
}
