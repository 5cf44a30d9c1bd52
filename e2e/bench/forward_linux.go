//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/agentenv-dev/agentenv/primitives"
)

// benchForward compares a connection into a sandbox with a direct connection.
func benchForward(ctx context.Context) (rows []row, err error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer func() { _ = ln.Close() }()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	err = withGuest(ctx, func(p primitives.EnvironmentPrimitive) error {
		direct, err := (&net.Dialer{}).DialContext(ctx, "tcp", ln.Addr().String())
		if err != nil {
			return err
		}
		defer func() { _ = direct.Close() }()
		forwarded, err := primitives.Dial(ctx, p, "tcp", ln.Addr().String())
		if err != nil {
			return err
		}
		defer func() { _ = forwarded.Close() }()
		base, ours, err := interleave(2000,
			func() error { return thereAndBack(direct, 1) },
			func() error { return thereAndBack(forwarded, 1) })
		if err != nil {
			return err
		}
		rows = append(rows, ratioRow("forwarded round trip of a byte, p50", "loopback TCP", "us", lower, micros(base), micros(ours), 3))
		const size = 64 << 20
		base, ours, err = interleave(5,
			func() error { return thereAndBack(direct, size) },
			func() error { return thereAndBack(forwarded, size) })
		rows = append(rows, ratioRow("forwarded stream there and back", "loopback TCP", "MB/s", higher, rate(size/1e6, base), rate(size/1e6, ours), 0.1))
		return err
	})
	return rows, err
}

// thereAndBack sends size bytes and reads them back.
func thereAndBack(c net.Conn, size int64) error {
	sent := make(chan error, 1)
	write := func() error {
		_, err := io.CopyN(c, zeros{}, size)
		return err
	}
	if size <= 1<<10 {
		sent <- write()
	} else {
		go func() { sent <- write() }()
	}
	_, err := io.CopyN(io.Discard, c, size)
	return errors.Join(err, <-sent)
}
