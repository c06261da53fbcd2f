package share

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/tabane/tabane/internal/epe/belief"
)

const (
	// longestLine bounds a line of a reply, in bytes, and longestArray an array.
	longestLine  = 4 << 10
	longestArray = 2 * mostServers
)

// guard is a connection to a store that may be anything: the library allocates as much memory as a
// reply says that it has, and follows arrays in arrays by recursion. Replies that are longer than
// any that is asked for end the connection before.
//
// What is done by the library ends at the deadline of the exchange, however slowly replies arrive.
type guard struct {
	net.Conn
	line []byte // of a reply, as far as it was read
	// skip are the bytes of a string that are left, with the end of its line; elements those of an
	// array.
	skip, elements int
}

// during has all that is read and written end with ctx. The caller calls done after it.
func (g *guard) during(ctx context.Context) (done func()) {
	deadline, _ := ctx.Deadline()
	_ = g.Conn.SetDeadline(deadline) // a closed connection fails when it is used
	stop := context.AfterFunc(ctx, func() { _ = g.Conn.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

// SetReadDeadline and SetWriteDeadline do nothing: the deadline is that of the exchange.
func (g *guard) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline is documented with SetReadDeadline.
func (g *guard) SetWriteDeadline(time.Time) error { return nil }

// Read implements net.Conn.
func (g *guard) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if fault := g.scan(b[:n]); fault != nil {
		return 0, fault
	}
	return n, err
}

// scan returns an error if what was read is no reply (RESP 2), or a longer one than any that is
// asked for.
func (g *guard) scan(b []byte) error {
	for len(b) > 0 {
		if g.skip > 0 {
			n := min(g.skip, len(b))
			g.skip, b = g.skip-n, b[n:]
			continue
		}
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			i = len(b) - 1
		}
		g.line = append(g.line, b[:i+1]...)
		b = b[i+1:]
		if len(g.line) > longestLine {
			return fmt.Errorf("line of a reply is longer than %d bytes", longestLine)
		}
		if g.line[len(g.line)-1] != '\n' {
			return nil
		}
		if err := g.header(bytes.TrimRight(g.line, "\r\n")); err != nil {
			return err
		}
		g.line = g.line[:0]
	}
	return nil
}

// header applies the first line of a reply, or of an element of an array.
func (g *guard) header(line []byte) error {
	if len(line) == 0 {
		return fmt.Errorf("reply is not of the protocol of Valkey and Redis: %q", line)
	}
	nested := g.elements > 0
	if nested {
		g.elements--
	}
	length := func(most int) (int, error) {
		n, err := strconv.Atoi(string(line[1:]))
		if err != nil || n < -1 || n > most {
			return 0, fmt.Errorf("reply is longer than %d, or of no length: %.40q", most, line)
		}
		return n, nil
	}
	switch line[0] {
	case '+', '-', ':':
		return nil
	case '$':
		n, err := length(2 * belief.MaxShared)
		if n >= 0 && err == nil {
			g.skip = n + len("\r\n")
		}
		return err
	case '*':
		n, err := length(longestArray)
		if nested {
			return fmt.Errorf("array in an array")
		}
		g.elements = max(n, 0)
		return err
	}
	return fmt.Errorf("reply is not of the protocol of Valkey and Redis: %.40q", line)
}
