//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/agentenv-dev/agentenv/environment"
)

// benchDockerWatch measures how soon a change in a bound workspace is reported, and how soon the
// watch of a large tree is live.
func benchDockerWatch(ctx context.Context) (rows []row, err error) {
	dir, err := os.MkdirTemp("", "bench-workspace-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	tree := filepath.Join(dir, "tree")
	if err := makeTree(tree, 10_000); err != nil {
		return nil, err
	}
	err = withEngine(ctx, func(e *engine) error {
		bound := func(c *environment.Sandbox) { c.Workspace = dir }
		return e.withBoxes(ctx, bound, func(boxes []box) error {
			one, err := watchOne(ctx, dir, boxes)
			if err != nil {
				return err
			}
			all := []contestant{clocked(1, func() error { return rawWatchTree(tree) })}
			for _, b := range boxes {
				all = append(all, clocked(1, func() error { return watchTree(ctx, b, "tree") }))
			}
			took, err := compete(5, all...)
			if err != nil {
				return err
			}
			rows = one
			for i, b := range boxes {
				rows = append(rows, ratioRow("docker watch of 10,000 folders over "+b.name, "walk and inotify add", "ms", lower, millis(mid(took[0])), millis(mid(took[1+i])), 1.1))
			}
			return nil
		})
	})
	return rows, err
}

func watchOne(ctx context.Context, dir string, boxes []box) (rows []row, err error) {
	raw, err := newRawWatch(filepath.Join(dir, "raw"))
	if err != nil {
		return nil, err
	}
	defer raw.close()
	all := []contestant{clocked(1, raw.change)}
	for _, b := range boxes {
		own, err := newOwnWatch(ctx, b, dir, b.name)
		if err != nil {
			return nil, err
		}
		defer own.close()
		all = append(all, clocked(1, own.change))
	}
	took, err := compete(1500, all...)
	if err != nil {
		return nil, err
	}
	for i, b := range boxes {
		rows = append(rows, ratioRow("docker watch over "+b.name+", p50", "raw inotify", "us", lower, micros(mid(took[0])), micros(mid(took[1+i])), b.pick(4, 2)))
	}
	return rows, nil
}
