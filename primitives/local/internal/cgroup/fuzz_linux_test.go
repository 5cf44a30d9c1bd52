package cgroup

import (
	"strings"
	"testing"
)

// FuzzLocate parses mounts and groups with names that another program chose.
func FuzzLocate(f *testing.F) {
	f.Add("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n", "0::/a/b\n", "")
	f.Add("30 23 0:26 /a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", "4:memory:/a/b\n", "memory")
	f.Fuzz(func(t *testing.T, mounts, own, controller string) {
		if dir, ok := locate(strings.NewReader(mounts), own, controller); !ok && dir != "" {
			t.Errorf("%q, but not found", dir)
		}
		_, _ = oomCount(own)
	})
}
