package workspace

import (
	"cmp"
	"encoding/binary"
	"io"
	"math"
	"math/bits"
)

// Bounds of a delta and of the search for it.
const (
	minDeltaBlock  = 32             // bytes of a block of the base, a power of two
	maxDeltaBlocks = 1 << 20        // blocks of the base
	maxDeltaParts  = 1 << 20        // parts of a delta
	maxDeltaMisses = 1 << 16        // blocks with an equal hash and another content
	maxDeltaBase   = math.MaxUint32 // the offset of a copy has 32 bits
	maxDeltaCopy   = 1 << 16        // bytes of one copy, as git writes it
	maxDeltaInsert = 127            // bytes of one insertion
)

// delta describes a target by parts of a base, in the format of git's packs. It holds no content.
type delta struct {
	base, target *io.SectionReader
	parts        []deltaPart
}

// deltaPart is n bytes at off: of the base, or of the target if the base does not have them.
type deltaPart struct {
	off, n int64
	insert bool
}

// findDelta describes target by parts of base. It returns nil if there can be none. The time is
// linear in both sizes; the memory is at most 50 MiB. Beyond a bound it finds no more parts.
func findDelta(base, target *io.SectionReader) (*delta, error) {
	if base.Size() == 0 || target.Size() == 0 || base.Size() > maxDeltaBase {
		return nil, nil
	}
	s := deltaSearch{delta: delta{base: base, target: target}, b: window{r: base}, t: window{r: target}}
	head := s.same(0, 0, min(base.Size(), target.Size()))
	tail := s.sameBefore(base.Size(), target.Size(), min(base.Size(), target.Size())-head)
	s.add(deltaPart{n: head})
	s.between(head, target.Size()-tail)
	s.add(deltaPart{off: base.Size() - tail, n: tail})
	return &s.delta, cmp.Or(s.b.err, s.t.err)
}

// deltaSearch finds the parts of a delta. Its windows keep the first error.
type deltaSearch struct {
	delta
	b, t   window
	blocks []deltaBlock // by their hash; a power of two
	misses int
}

// deltaBlock is a block of the base.
type deltaBlock struct {
	hash uint32
	at   uint32 // its number from 1; 0 means that there is none
}

// same returns how many bytes from b of the base are those from t of the target, at most most.
func (s *deltaSearch) same(b, t, most int64) int64 {
	n := int64(0)
	for step := int64(minDeltaBlock); n < most; step = min(2*step, windowSize/2) {
		k := min(step, most-n)
		x, y := s.b.at(b+n, k), s.t.at(t+n, k)
		if i := firstDifference(x, y); int64(i) < k {
			return n + int64(i)
		}
		n += k
	}
	return n
}

// sameBefore returns how many bytes before b of the base are those before t of the target.
func (s *deltaSearch) sameBefore(b, t, most int64) int64 {
	n := int64(0)
	for step := int64(minDeltaBlock); n < most; step = min(2*step, windowSize/2) {
		k := min(step, most-n)
		x, y := s.b.at(b-n-k, k), s.t.at(t-n-k, k)
		for i := range k {
			if x[k-1-i] != y[k-1-i] {
				return n + i
			}
		}
		n += k
	}
	return n
}

func firstDifference(x, y []byte) int {
	i := 0
	for ; i+8 <= len(x); i += 8 {
		if d := binary.LittleEndian.Uint64(x[i:]) ^ binary.LittleEndian.Uint64(y[i:]); d != 0 {
			return i + bits.TrailingZeros64(d)/8
		}
	}
	for i < len(x) && x[i] == y[i] {
		i++
	}
	return i
}

// between adds the parts for the target from begin to end.
func (s *deltaSearch) between(begin, end int64) {
	size := int64(minDeltaBlock)
	for size*maxDeltaBlocks < s.base.Size() {
		size *= 2
	}
	if end-begin >= size {
		s.index(size)
	}
	done := begin // parts has the target up to here
	var hash rollingHash
	for at := begin; at+size <= end && s.blocks != nil && !s.exhausted(); {
		if at == done {
			hash = newRollingHash(s.t.at(at, size))
		}
		if from, found := s.find(hash.sum(), size); found {
			if n := s.same(from, at, min(s.base.Size()-from, end-at)); n >= size {
				before := s.sameBefore(from, at, min(at-done, from))
				s.add(deltaPart{off: done, n: at - before - done, insert: true})
				s.add(deltaPart{off: from - before, n: before + n})
				at += n
				done = at
				continue
			}
			s.misses++
		}
		if at+size < end {
			hash.roll(s.t.at(at, size+1))
		}
		at++
	}
	s.add(deltaPart{off: done, n: end - done, insert: true})
}

// exhausted reports whether a bound is reached, or a read has failed.
func (s *deltaSearch) exhausted() bool {
	return s.misses > maxDeltaMisses || len(s.parts) > maxDeltaParts || s.b.err != nil || s.t.err != nil
}

// index fills blocks. Of blocks with the same hash it has the first.
func (s *deltaSearch) index(size int64) {
	count := s.base.Size() / size
	if count == 0 {
		return
	}
	s.blocks = make([]deltaBlock, 2<<bits.Len64(uint64(count)))
	for i := range count {
		h := newRollingHash(s.b.at(i*size, size))
		sum := h.sum()
		if slot := &s.blocks[int(sum)&(len(s.blocks)-1)]; slot.at == 0 {
			*slot = deltaBlock{hash: sum, at: uint32(i + 1)}
		}
	}
}

// find returns where a block of the base with this hash is.
func (s *deltaSearch) find(sum uint32, size int64) (from int64, found bool) {
	slot := s.blocks[int(sum)&(len(s.blocks)-1)]
	return (int64(slot.at) - 1) * size, slot.at != 0 && slot.hash == sum
}

// add adds a part that is not empty.
func (s *deltaSearch) add(p deltaPart) {
	if p.n > 0 {
		s.parts = append(s.parts, p)
	}
}

// rollingHash is the hash of a block that moves by one byte.
type rollingHash struct {
	value, power uint64 // power is the factor of the byte that leaves
}

const rollingFactor = 0x9e3779b97f4a7c15

func newRollingHash(block []byte) rollingHash {
	h := rollingHash{power: 1}
	for _, c := range block {
		h.value = h.value*rollingFactor + uint64(c) + 1
		h.power *= rollingFactor
	}
	return h
}

// roll moves on. bytes has the block and the next byte.
func (h *rollingHash) roll(bytes []byte) {
	h.value = h.value*rollingFactor + uint64(bytes[len(bytes)-1]) + 1 - h.power*(uint64(bytes[0])+1)
}

func (h *rollingHash) sum() uint32 { return uint32(h.value >> 32) }

// windowSize is how much of a content is in memory at once, in bytes.
const windowSize = 64 << 10

// window reads parts of a content that are near each other.
type window struct {
	r     *io.SectionReader
	begin int64
	buf   []byte
	err   error // the first one; the bytes are wrong then
}

// at returns n bytes at off, at most half of windowSize, until the next call.
func (w *window) at(off, n int64) []byte {
	if off < w.begin || off+n > w.begin+int64(len(w.buf)) {
		if w.buf == nil {
			w.buf = make([]byte, windowSize)
		}
		w.begin = max(off-windowSize/4, 0) // what is asked for next may be before it
		w.buf = w.buf[:min(windowSize, w.r.Size()-w.begin)]
		if _, err := w.r.ReadAt(w.buf, w.begin); err != nil && w.err == nil {
			w.err = err // it is no end: the size is known
		}
	}
	return w.buf[off-w.begin:][:n]
}

// write writes the delta in the format of git's packs.
func (d *delta) write(w io.Writer) error {
	head := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(d.base.Size())), uint64(d.target.Size()))
	if _, err := w.Write(head); err != nil {
		return err
	}
	for _, p := range d.parts {
		most := int64(maxDeltaCopy)
		if p.insert {
			most = maxDeltaInsert
		}
		for ; p.n > 0; p.n, p.off = p.n-most, p.off+most {
			if err := d.writePart(w, p.off, min(p.n, most), p.insert); err != nil {
				return err
			}
		}
	}
	return nil
}

// writePart writes one instruction. A copy has the bytes of its offset and length that are not
// zero, and says which they are; a length of zero is maxDeltaCopy.
func (d *delta) writePart(w io.Writer, off, n int64, insert bool) error {
	if insert {
		if _, err := w.Write([]byte{byte(n)}); err != nil {
			return err
		}
		_, err := io.Copy(w, io.NewSectionReader(d.target, off, n))
		return err
	}
	code := []byte{0x80}
	for i := range 4 {
		if c := byte(off >> (8 * i)); c != 0 {
			code[0] |= 1 << i
			code = append(code, c)
		}
	}
	for i := range 2 {
		if c := byte(n % maxDeltaCopy >> (8 * i)); c != 0 {
			code[0] |= 0x10 << i
			code = append(code, c)
		}
	}
	_, err := w.Write(code)
	return err
}
