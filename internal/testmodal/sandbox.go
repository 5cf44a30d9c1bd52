package testmodal

import (
	"os"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
)

// sandbox is one sandbox and the one task that it has.
type sandbox struct {
	id, task   string
	app        string
	dir        string
	definition *pb.Sandbox
	created    time.Time
	jwt        string
	running    sync.WaitGroup
	gone       chan struct{} // closed when nothing of it is left

	mu     sync.Mutex
	name   string
	tags   []*pb.SandboxTag
	execs  map[string]*execution
	result *pb.GenericResult // nil while it runs
	ended  chan struct{}     // closed with result
}

// end ends the sandbox with a result, unless it has one. It does not wait.
func (sb *sandbox) end(result *pb.GenericResult) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.result != nil {
		return
	}
	sb.result = result
	close(sb.ended)
	execs := sb.execs
	go func() {
		for _, e := range execs {
			e.kill()
		}
		sb.running.Wait()
		_ = os.RemoveAll(sb.dir)
		close(sb.gone)
	}()
}

// resultTerminated is the end by a call.
func resultTerminated() *pb.GenericResult {
	return pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_TERMINATED}.Build()
}
