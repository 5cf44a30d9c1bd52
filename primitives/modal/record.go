package modal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/agentenv-dev/agentenv/primitives"
)

// maxRecord is the maximum length of a record in bytes.
const maxRecord = 256 << 10

// record encodes the configuration of a sandbox, for Attach and Fork. It is stored in the
// sandbox. Its digest is stored in a tag, which commands in the sandbox cannot change.
func (c config) record() ([]byte, error) {
	c.Runner, c.Name, c.Profile = "", "", ""
	b, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	if len(b) > maxRecord {
		return nil, c.invalid("dockerfile", fmt.Sprintf("the configuration has %d bytes, more than %d; make it shorter", len(b), maxRecord))
	}
	return b, nil
}

func (d *driver) writeRecord(ctx context.Context, settings []byte) error {
	return d.sandbox.WriteFile(ctx, guestSettings, bytes.NewReader(settings), primitives.WriteOptions{Mode: 0o600})
}

// readRecord reads the record of the sandbox. If the record cannot be read, or was changed, the
// sandbox still works but cannot be copied.
func (d *driver) readRecord(ctx context.Context, sum string, ours config) {
	b, err := primitives.ReadFile(ctx, d.sandbox, guestSettings, maxRecord)
	if err == nil && digest(b) != sum {
		err = errors.New("a command of the sandbox has changed it")
	}
	var cfg config
	if err == nil {
		err = json.Unmarshal(b, &cfg)
	}
	if err != nil {
		d.recordErr = fmt.Errorf("%w: the record of what the sandbox was made with cannot be used: %w", errors.ErrUnsupported, err)
		return
	}
	cfg.App, cfg.Environment, cfg.Profile = ours.App, ours.Environment, ours.Profile
	cfg.Provider.Runner, cfg.Logger, cfg.Progress = ours.Provider.Runner, ours.Logger, ours.Progress
	cfg.Runner, cfg.keepAlive = ours.Runner, ours.keepAlive
	d.cfg = cfg
}
