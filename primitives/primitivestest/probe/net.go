package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// netWords are about connections. Their operands begin with a network and an address.
func netWords() map[string]step {
	return map[string]step{
		// serve: listen, print the address, and echo the data of each connection until its end.
		"serve": {2, func(_ *script, a []string) error {
			return serve(a, func(c net.Conn) error { _, err := io.Copy(c, c); return err })
		}},
		// tally: the same, but answer with the number of bytes after the end of the data.
		"tally": {2, func(_ *script, a []string) error {
			return serve(a, func(c net.Conn) error {
				n, err := io.Copy(io.Discard, c)
				fmt.Fprint(c, n)
				return err
			})
		}},
		// gush: send without end, and print "over" when writing to a connection fails.
		"gush": {2, func(_ *script, a []string) error {
			return serve(a, func(c net.Conn) error {
				for {
					if _, err := c.Write(make([]byte, 32<<10)); err != nil {
						return write(os.Stdout, []byte("over\n"))
					}
				}
			})
		}},
		// reset: read one byte of each connection, send two, and reset it.
		"reset": {2, func(_ *script, a []string) error {
			return serve(a, func(c net.Conn) error {
				_, err := io.ReadFull(c, make([]byte, 1))
				_, werr := c.Write([]byte("ab"))
				return errors.Join(err, werr, c.(*net.TCPConn).SetLinger(0))
			})
		}},
		// connect: send standard input and close that half, and print the received data until
		// its end, or "reset".
		"connect": {2, func(_ *script, a []string) error {
			c, err := net.Dial(a[0], a[1]) //nolint:noctx // the suite ends the probe
			if err != nil {
				return err
			}
			go func() {
				_, _ = io.Copy(c, os.Stdin) // the other end tells if data is missing
				_ = c.(interface{ CloseWrite() error }).CloseWrite()
			}()
			if _, err := io.Copy(os.Stdout, c); err != nil {
				return write(os.Stdout, []byte("reset"))
			}
			return nil
		}},
	}
}

// serve handles connections until it is killed.
func serve(a []string, handle func(net.Conn) error) error {
	ln, err := net.Listen(a[0], a[1]) //nolint:noctx // the suite ends the probe
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, ln.Addr())
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			_ = handle(c)
			_ = c.Close()
		}()
	}
}
