package docker

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/agentenv-dev/agentenv/primitives"
)

// ReadUsage asks the engine for the usage. Processes counts threads, also the guest's own.
func (d *driver) ReadUsage(ctx context.Context) (primitives.Usage, error) {
	answer, err := d.eng.ContainerStatsOneShot(ctx, d.container)
	if err != nil {
		return primitives.Usage{}, d.explain(ctx, err)
	}
	var stats container.StatsResponse
	err = json.NewDecoder(answer.Body).Decode(&stats)
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return primitives.Usage{}, err
	}
	if stats.Read.IsZero() { // the engine's answer for one that does not run
		return primitives.Usage{}, errGone
	}
	limit := d.cfg.Memory
	if limit == 0 {
		limit = defaultMemory
	}
	return usage(stats, int64(max(limit, 0))), nil
}

// usage converts the engine's statistics, for either version of control groups.
func usage(stats container.StatsResponse, limit int64) primitives.Usage {
	u := primitives.Usage{
		CPU:         time.Duration(signed(stats.CPUStats.CPUUsage.TotalUsage)),
		Memory:      -1,
		MemoryLimit: limit,
		Processes:   -1,
	}
	if used := stats.MemoryStats.Usage; used > 0 {
		cache, ok := stats.MemoryStats.Stats["total_inactive_file"] // version 1
		if !ok {
			cache = stats.MemoryStats.Stats["inactive_file"]
		}
		u.Memory = signed(used - min(cache, used))
	}
	if n := stats.PidsStats.Current; n > 0 {
		u.Processes = int(signed(n))
	}
	return u
}

// signed converts a number of the kernel, which does not count that far.
func signed(n uint64) int64 { return int64(min(n, math.MaxInt64)) }
