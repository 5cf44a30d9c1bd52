package guest

import (
	"io/fs"

	"github.com/agentenv-dev/agentenv/primitives"
)

// opcode says what a stream is for. It is the first byte of its request.
type opcode uint8

// The operations. The numbers are part of the protocol.
const (
	opPoll opcode = 1 + iota
	opTerminate
	opBye // ends every other operation of this host and answers when all have ended
	opExec
	opReattach
	opAttach // a stream of a process: standard input, output or error
	opRun
	opOpen
	opWrite
	opWriteFiles
	opStat
	opList
	opMkdir
	opRemove
	opMove
	opPack
	opUnpack
	opWatch
	opIdentify
)

// channel is one of a process's streams.
type channel uint8

const (
	chanStdin channel = iota
	chanStdout
	chanStderr
)

// empty is the request of operations that need nothing more.
type empty struct{}

func (*empty) code(*codec) {}

// execRequest starts a command. Token is the host's name for it, by which other
// streams attach. With Pipes the frame carries the writing ends of pipes for its
// output: one, or another one for standard error.
type execRequest struct {
	Token uint64
	Cmd   primitives.Command
	Pipes bool
}

func (r *execRequest) code(c *codec) {
	c.uint64(&r.Token)
	codeCommand(c, &r.Cmd)
	c.bool(&r.Pipes)
}

type reattachRequest struct {
	Token uint64
	ID    string
	From  primitives.Offset
}

func (r *reattachRequest) code(c *codec) {
	c.uint64(&r.Token)
	codeString(c, &r.ID)
	codeOffset(c, &r.From)
}

type attachRequest struct {
	Token   uint64
	Channel channel
}

func (r *attachRequest) code(c *codec) {
	c.uint64(&r.Token)
	codeUint(c, &r.Channel)
}

// runRequest runs a command to its end. With Cmd.Stdin the guest answers with
// an empty reply as soon as standard input can be attached.
type runRequest struct {
	Token     uint64
	Cmd       primitives.Command
	MaxOutput int64
}

func (r *runRequest) code(c *codec) {
	c.uint64(&r.Token)
	codeCommand(c, &r.Cmd)
	c.int64(&r.MaxOutput)
}

// runReply follows the output.
type runReply struct {
	StdoutDropped, StderrDropped int64
	Status                       primitives.ExitStatus
	Err                          *wireError
}

func (r *runReply) code(c *codec) {
	c.int64(&r.StdoutDropped)
	c.int64(&r.StderrDropped)
	codeExitStatus(c, &r.Status)
	codeOptional(c, &r.Err, codeError)
}

type pathRequest struct{ Path string }

func (r *pathRequest) code(c *codec) { codeString(c, &r.Path) }

type writeRequest struct {
	Path string
	Opts primitives.WriteOptions
}

func (r *writeRequest) code(c *codec) {
	codeString(c, &r.Path)
	codeWriteOptions(c, &r.Opts)
}

// fileHeader precedes each file of a batch; its content follows.
type fileHeader struct {
	Path string
	Mode fs.FileMode
	Size int64
}

func (r *fileHeader) code(c *codec) {
	codeString(c, &r.Path)
	codeUint(c, &r.Mode)
	c.int64(&r.Size)
}

// fileFailure reports a file of a batch that was not written.
type fileFailure struct {
	Index int
	Err   wireError
}

func (r *fileFailure) code(c *codec) {
	codeInt(c, &r.Index)
	r.Err.code(c)
}

// listItem is a part of a listing.
type listItem struct{ Infos []primitives.FileInfo }

func (r *listItem) code(c *codec) { codeSlice(c, &r.Infos, codeFileInfo) }

// maxEventContent is the longest content of a watch event; a longer one is left
// out as too large.
const maxEventContent = 64 << 20

type listRequest struct {
	Dir  string
	Opts primitives.ListOptions
}

func (r *listRequest) code(c *codec) {
	codeString(c, &r.Dir)
	codeListOptions(c, &r.Opts)
}

type mkdirRequest struct {
	Path string
	Mode fs.FileMode
}

func (r *mkdirRequest) code(c *codec) {
	codeString(c, &r.Path)
	codeUint(c, &r.Mode)
}

type removeRequest struct {
	Path      string
	Recursive bool
}

func (r *removeRequest) code(c *codec) {
	codeString(c, &r.Path)
	c.bool(&r.Recursive)
}

type moveRequest struct{ From, To string }

func (r *moveRequest) code(c *codec) {
	codeString(c, &r.From)
	codeString(c, &r.To)
}

type packRequest struct {
	Dir  string
	Opts primitives.PackOptions
}

func (r *packRequest) code(c *codec) {
	codeString(c, &r.Dir)
	codePackOptions(c, &r.Opts)
}

type watchRequest struct {
	Dir  string
	Opts primitives.WatchOptions
}

func (r *watchRequest) code(c *codec) {
	codeString(c, &r.Dir)
	codeWatchOptions(c, &r.Opts)
}

// controlRequest is what a host asks of a running process; Seq names the answer.
type controlRequest struct {
	Seq    uint64
	Signal primitives.Signal       // for frameSignal
	Size   primitives.TerminalSize // for frameResize
	Output channel                 // for frameCloseOutput
}

func (r *controlRequest) code(c *codec) {
	c.uint64(&r.Seq)
	codeString(c, &r.Signal)
	codeTerminalSize(c, &r.Size)
	codeUint(c, &r.Output)
}

type controlReply struct {
	Seq uint64
	Err *wireError
}

func (r *controlReply) code(c *codec) {
	c.uint64(&r.Seq)
	codeOptional(c, &r.Err, codeError)
}

// exitReport is the end of a process.
type exitReport struct {
	Status primitives.ExitStatus
	Err    *wireError
}

func (r *exitReport) code(c *codec) {
	codeExitStatus(c, &r.Status)
	codeOptional(c, &r.Err, codeError)
}

// Answers that are values of the contract.
type (
	fileInfoReply  struct{ Info primitives.FileInfo }
	stateReply     struct{ State primitives.State }
	terminateReply struct {
		Report primitives.TerminateReport
		Err    *wireError // a report may come with an error
	}
	eventFrame struct{ Event primitives.WatchEvent }
)

func (r *fileInfoReply) code(c *codec) { codeFileInfo(c, &r.Info) }
func (r *stateReply) code(c *codec)    { codeState(c, &r.State) }
func (r *eventFrame) code(c *codec)    { codeWatchEvent(c, &r.Event) }
func (r *terminateReply) code(c *codec) {
	codeTerminateReport(c, &r.Report)
	codeOptional(c, &r.Err, codeError)
}

func codeError(c *codec, v *wireError) { v.code(c) }
