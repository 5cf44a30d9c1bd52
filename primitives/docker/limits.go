package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/client"
)

// limit sets the limits of memory and processes. Unlike engineLimits it does not ask the engine;
// keepLimits checks that the engine kept them.
func (c config) limit(h *container.HostConfig) error {
	switch {
	case c.Memory == 0:
		h.Memory = defaultMemory
	case c.Memory > 0:
		h.Memory = int64(c.Memory)
	}
	h.MemorySwap = h.Memory
	pids := c.Pids
	switch {
	case pids == 0:
		pids = defaultPids
	case pids < 0:
		pids = -1
	case pids > maxPids:
		return c.invalid("pids", fmt.Sprintf("%d are too many; give at most %d, or a negative number for no limit", pids, maxPids))
	}
	h.PidsLimit = &pids
	return nil
}

// engineLimits adds the settings that depend on the engine: processors, disk and runtime.
func engineLimits(ctx context.Context, eng *client.Client, cfg config, h *container.HostConfig) error {
	info, err := eng.Info(ctx)
	if err != nil {
		return fmt.Errorf("ask the engine what it can limit: %w", err)
	}
	if err := cfg.checkRuntime(info); err != nil {
		return err
	}
	h.Runtime = cfg.Runtime
	switch {
	case cfg.CPUs > 0:
		h.NanoCPUs = int64(cfg.CPUs * 1e9)
	case cfg.CPUs == 0 && info.CPUCfsQuota:
		h.NanoCPUs = int64(max(info.NCPU-1, 1)) * 1e9
	}
	disk := cfg.Disk
	switch {
	case disk == 0 && mayLimitDisk(info):
		disk = defaultDisk
	case disk > 0 && ignoresDisk(info):
		return fmt.Errorf("%w: disk: this engine cannot limit it, because its images are in the store of containerd; leave it out", errors.ErrUnsupported)
	}
	if disk > 0 {
		h.StorageOpt = map[string]string{"size": strconv.FormatInt(int64(disk), 10)}
	}
	return nil
}

// warnUnlimited logs the default limits that the engine cannot set and does not warn about.
func (c config) warnUnlimited(h *container.HostConfig) {
	if c.CPUs == 0 && h.NanoCPUs == 0 {
		c.Logger.Warn("the sandbox may use every processor: the engine cannot limit them")
	}
	if c.Disk == 0 && h.StorageOpt == nil {
		c.Logger.Warn("the sandbox may fill the engine's disk: the engine cannot limit it (overlay2 can on XFS mounted with pquota)")
	}
}

// mayLimitDisk reports whether an engine can limit the disk if its file system is
// mounted with quotas, which the engine does not report.
func mayLimitDisk(info system.Info) bool {
	return info.Driver == "overlay2" && slices.Contains(info.DriverStatus, [2]string{"Backing Filesystem", "xfs"})
}

// ignoresDisk reports whether an engine's image store is containerd's: such an engine accepts the
// limit without an error and sets none.
func ignoresDisk(info system.Info) bool {
	return slices.ContainsFunc(info.DriverStatus, func(status [2]string) bool {
		return strings.HasPrefix(status[1], "io.containerd.snapshotter")
	})
}

// checkRuntime refuses a runtime that the engine does not have. It accepts every name that begins
// with "io.containerd.": engines find those runtimes without a configuration.
func (c config) checkRuntime(info system.Info) error {
	if _, found := info.Runtimes[c.Runtime]; found || c.Runtime == "" || strings.HasPrefix(c.Runtime, "io.containerd.") {
		return nil
	}
	return fmt.Errorf("%w: runtime: the engine has no runtime %q but %s; add it to the engine's configuration, as 'runsc install' does for gVisor, and restart the engine",
		fs.ErrNotExist, c.Runtime, strings.Join(slices.Sorted(maps.Keys(info.Runtimes)), ", "))
}
