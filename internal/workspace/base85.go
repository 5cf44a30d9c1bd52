package workspace

import (
	"encoding/binary"
	"io"
)

// base85 is the base85 alphabet of git.
const base85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

// base85Line is the maximum number of bytes in a line of a binary patch.
const base85Line = 52

// base85Writer writes the lines of a binary patch: a letter for the number of bytes, then five
// characters for every four bytes.
type base85Writer struct {
	w   io.Writer
	buf [base85Line]byte
	n   int
}

func (b *base85Writer) Write(data []byte) (int, error) {
	written := 0
	for len(data) > 0 {
		n := copy(b.buf[b.n:], data)
		b.n += n
		written += n
		data = data[n:]
		if b.n == base85Line {
			if err := b.close(); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

// close writes the remaining bytes as a short line.
func (b *base85Writer) close() error {
	if b.n == 0 {
		return nil
	}
	var line [1 + base85Line/4*5 + 1]byte
	if line[0] = byte('A' + b.n - 1); b.n > 26 {
		line[0] = byte('a' + b.n - 27)
	}
	clear(b.buf[b.n:])
	end := 1
	for i := 0; i < b.n; i += 4 {
		v := binary.BigEndian.Uint32(b.buf[i:])
		for j := 4; j >= 0; j-- {
			line[end+j] = base85[v%85]
			v /= 85
		}
		end += 5
	}
	line[end] = '\n'
	b.n = 0
	_, err := b.w.Write(line[:end+1])
	return err
}
