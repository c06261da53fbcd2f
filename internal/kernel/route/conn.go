package route

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Limits of one batch. The kernel processes the batch and queues its answers before sendmsg
// returns, so the answers to a batch of failures must fit into the receive buffer.
const (
	batchMessages = 512
	batchBytes    = 64 << 10
	readBuffer    = 2 << 20
	// messageBuffer is large enough for dump messages of 32 kB, the kernel's maximum.
	messageBuffer = 64 << 10
)

// answerTimeout is the timeout of a request. The kernel normally answers at once.
const answerTimeout = 30 * time.Second

// A Conn is an rtnetlink connection to a network namespace. It is safe for concurrent use.
type Conn struct {
	mu  sync.Mutex
	nl  *netlink.Conn
	raw syscall.RawConn
	// sequence is the number of the last message of a batch. The others have the space for a batch,
	// its messages and their steps, which is used again.
	sequence uint32
	buffer   []byte
	arena    arena
	steps    []step
	// marks are the programs of routes with a mark.
	marks marks
}

// Dial opens a connection to the network namespace of the calling thread.
func Dial() (*Conn, error) {
	nl, err := dial(readBuffer)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	raw, err := nl.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open rtnetlink: %w", err), nl.Close())
	}
	return &Conn{nl: nl, raw: raw}, nil
}

// dial opens a socket with extended acks and strict checks. NETLINK_CAP_ACK is not set: the netlink
// package expects the extended ack after the copy of the request, which that option omits.
func dial(buffer int) (*netlink.Conn, error) {
	nl, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Strict: true, MessageBufferSize: messageBuffer})
	if err != nil {
		return nil, err
	}
	if err := nl.SetReadBuffer(buffer); err != nil {
		return nil, errors.Join(err, nl.Close())
	}
	return nl, nil
}

// Close closes the connection. Objects remain in the kernel.
func (c *Conn) Close() error { return errors.Join(c.marks.close(), c.nl.Close()) }

// port returns the port number of the connection, which is nlmsg_pid of the notifications that its
// requests cause.
func (c *Conn) port() (port uint32, err error) {
	var failed error
	err = c.raw.Control(func(fd uintptr) {
		address, e := unix.Getsockname(int(fd))
		if a, ok := address.(*unix.SockaddrNetlink); ok {
			port = a.Pid
		}
		failed = e
	})
	return port, errors.Join(err, failed)
}

// execute sends one request and returns its answers; an error is the kernel's errno with its
// extended ack message.
func (c *Conn) execute(m netlink.Message) ([]netlink.Message, error) {
	if err := c.nl.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return nil, err
	}
	got, err := c.nl.Execute(m)
	var nlerr *netlink.OpError
	if errors.As(err, &nlerr) {
		if nlerr.Message != "" {
			return nil, fmt.Errorf("%w (%s)", nlerr.Err, nlerr.Message)
		}
		return nil, nlerr.Err
	}
	return got, err
}

const (
	// messageRoom is the space for a message; seldom more is needed.
	messageRoom = 160
	// arenaRooms is the number of messages that an arena has space for: those of the operations
	// that a Reconciler applies together.
	arenaRooms = maxApplyBatch
)
