package traffic

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"

	"github.com/tabane/tabane/internal/base/unit"
)

// patternSize is the period of the content in bytes. It is far longer than the window of deflate
// (32 KiB), so that no proxy compresses the content.
const patternSize = 1 << 20

// pattern returns one period of the content: random, and the same in every process, so that a
// receiver can check it.
var pattern = sync.OnceValue(func() []byte {
	p := make([]byte, patternSize)
	_, _ = rand.NewChaCha8([32]byte{'t', 'a', 'b', 'a', 'n', 'e'}).Read(p) // never fails
	return p
})

// filler generates size bytes as they are read. Each offset always has the same byte.
type filler struct {
	size, at int64
}

// piece returns the next bytes, at most n, without copying them. It is empty at the end of the
// content.
func (c *filler) piece(n int64) []byte {
	p := pattern()[c.at%patternSize:]
	return p[:min(int64(len(p)), n, c.size-c.at)]
}

func (c *filler) Read(b []byte) (int, error) {
	if c.at == c.size {
		return 0, io.EOF
	}
	n := copy(b, c.piece(int64(len(b))))
	c.at += int64(n)
	return n, nil
}

func (c *filler) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += c.at
	case io.SeekEnd:
		offset += c.size
	default:
		return 0, fmt.Errorf("seek content: unknown whence %d", whence)
	}
	if offset < 0 || offset > c.size {
		return 0, errors.New("seek content: position outside of it")
	}
	c.at = offset
	return offset, nil
}

// sendTo writes the next n bytes, or all that remain, directly from the pattern.
func (c *filler) sendTo(w io.Writer, n int64) (sent int64, err error) {
	for sent < n {
		p := c.piece(n - sent)
		if len(p) == 0 {
			return sent, nil
		}
		m, err := w.Write(p)
		c.at += int64(m)
		sent += int64(m)
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// maxContent bounds a single response: 1 PiB, two and a half hours at 1 Tbit/s.
const maxContent = 1024 * unit.TiB
