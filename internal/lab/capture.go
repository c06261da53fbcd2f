package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/netns"
)

const (
	// maxPacket is the largest packet that is written whole: an IPv6 GSO packet with room for its headers.
	maxPacket = 1 << 18
	// captureBuffer holds packets while the file is slow, in bytes.
	captureBuffer = 32 << 20
	// checkEvery is how often a capture looks whether its node still exists.
	checkEvery = 250 * time.Millisecond
)

// CaptureStats is what a capture saw.
type CaptureStats struct {
	Packets, Bytes uint64
	// Dropped packets found no room in the kernel's buffer.
	Dropped uint64
}

// Capture writes the packets of a node's interface to a pcapng file with timestamps in nanoseconds, until ctx ends: that
// is no error. An empty iface captures all interfaces but the loopback. The file "-" is the standard output. Packets are
// those that the interface sees, so with offloads on they can be larger than the MTU.
func (l *Lab) Capture(ctx context.Context, node, iface, file string) (CaptureStats, error) {
	n, err := l.plan.node(node)
	if err != nil {
		return CaptureStats{}, fmt.Errorf("capture in lab %q: %w", l.name, err)
	}
	s, err := captureNode(ctx, n.netns, iface, file)
	if err != nil {
		return s, fmt.Errorf("capture on node %q: %w", node, err)
	}
	return s, nil
}

func captureNode(ctx context.Context, namespace, iface, file string) (stats CaptureStats, err error) {
	node, err := openSpace(namespace)
	if err != nil {
		return stats, err
	}
	defer node.close()
	c := &capture{ids: map[int]int{}, inode: node.inode, data: make([]byte, maxPacket), oob: make([]byte, 128)}
	if err := netns.Do(namespace, func() error { return c.open(iface) }); err != nil {
		return stats, err
	}
	defer func() { err = errors.Join(err, c.socket.Close()) }()

	out := os.Stdout
	if file != "-" {
		if out, err = os.Create(file); err != nil {
			return stats, err
		}
		defer func() { err = errors.Join(err, out.Close()) }()
	}
	stop := context.AfterFunc(ctx, func() { c.socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = c.run(ctx, namespace, out)
	return c.stats, err
}

// capture is one packet socket and the interfaces that it sees.
type capture struct {
	socket *os.File
	// names are the interfaces to capture by index, ids their numbers in the file.
	names map[int]string
	ids   map[int]int
	inode uint64 // of the namespace
	stats CaptureStats

	file      *pcapgo.NgWriter
	data, oob []byte
}

// open opens the socket in the namespace of the calling thread.
func (c *capture) open(iface string) error {
	all, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	c.names = map[int]string{}
	bind := 0
	for _, i := range all {
		switch {
		case iface == i.Name:
			bind = i.Index
			c.names[i.Index] = i.Name
		case iface == "" && i.Flags&net.FlagLoopback == 0:
			c.names[i.Index] = i.Name
		}
	}
	if len(c.names) == 0 {
		if iface == "" {
			return errors.New("there is no interface but the loopback")
		}
		names := ""
		for _, i := range all {
			names += " " + i.Name
		}
		return fmt.Errorf("no interface %q; there are%s", iface, names)
	}
	// Protocol 0 receives nothing until bind says what: no packet of another interface slips in.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ethPAll, Ifindex: bind}),
	)
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("open packet socket: %w", err)
	}
	c.socket = os.NewFile(uintptr(fd), "packet socket")
	return nil
}

// ethPAll is htons(ETH_P_ALL).
var ethPAll = binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})

// run copies packets until ctx ends or the node goes.
func (c *capture) run(ctx context.Context, namespace string, out io.Writer) (err error) {
	if err := c.header(out); err != nil {
		return err
	}
	defer func() {
		c.countDrops()
		err = errors.Join(err, c.footer())
	}()
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return err
	}
	next := time.Now().Add(checkEvery)
	for {
		if err := c.socket.SetReadDeadline(next); err != nil {
			return err
		}
		if ctx.Err() != nil { // after the deadline is set: the one that ctx's end sets must not be overwritten
			return c.last(raw)
		}
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			for ctx.Err() == nil && time.Now().Before(next) {
				var more bool
				if more, failed = c.drain(int(fd)); failed != nil {
					return true
				}
				if !more {
					// What came should be in the file while nothing more comes.
					failed = c.file.Flush()
					return failed != nil
				}
			}
			return true
		})
		switch {
		case failed != nil:
			return failed
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
		if time.Now().Before(next) {
			continue
		}
		// The socket keeps the namespace alive, so nothing else tells that its lab is gone.
		if gone(namespace, c.inode) {
			return errors.New("the node is gone")
		}
		next = time.Now().Add(checkEvery)
	}
}

// last copies the packets that wait when the capture ends, but under a flood does not go on for ever.
func (c *capture) last(raw syscall.RawConn) error {
	var failed error
	end, more := time.Now().Add(checkEvery), true
	err := raw.Control(func(fd uintptr) {
		for more && failed == nil && time.Now().Before(end) {
			more, failed = c.drain(int(fd))
		}
	})
	return errors.Join(err, failed)
}

// drain copies packets that wait, a number of them at most. It reports whether there may be more.
func (c *capture) drain(fd int) (more bool, err error) {
	for range 256 {
		n, oobn, _, from, err := unix.Recvmsg(fd, c.data, c.oob, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN): // an interface went down; it may come back
			continue
		case err != nil:
			return false, fmt.Errorf("read packet socket: %w", err)
		}
		if err := c.write(n, timestamp(c.oob[:oobn]), from); err != nil {
			return false, err
		}
	}
	return true, nil
}

// gone reports whether the name means another namespace now, or none. The inode number is that of one that is still
// open, so it cannot have been reused.
func gone(namespace string, inode uint64) bool {
	s, err := openSpace(namespace)
	if err != nil {
		return true
	}
	defer s.close()
	return s.inode != inode
}

// write adds one packet of length n, of which data has as much as fits.
func (c *capture) write(n int, at time.Time, from unix.Sockaddr) error {
	ll, ok := from.(*unix.SockaddrLinklayer)
	if !ok {
		return nil
	}
	id, ok := c.ids[ll.Ifindex]
	if !ok {
		return nil
	}
	direction := pcapgo.NgEpbFlagDirectionInbound
	if ll.Pkttype == unix.PACKET_OUTGOING {
		direction = pcapgo.NgEpbFlagDirectionOutbound
	}
	captured := min(n, len(c.data))
	c.stats.Packets++
	c.stats.Bytes += uint64(n)
	return c.file.WritePacketWithOptions(
		gopacket.CaptureInfo{Timestamp: at, CaptureLength: captured, Length: n, InterfaceIndex: id},
		c.data[:captured], pcapgo.NgPacketOptions{Flags: &pcapgo.NgEpbFlags{Direction: direction}})
}

// header starts the file and declares the interfaces.
func (c *capture) header(out io.Writer) error {
	for id, index := range slices.Sorted(maps.Keys(c.names)) {
		c.ids[index] = id // the file numbers them as they come
		about := pcapgo.NgInterface{
			Name: c.names[index], OS: runtime.GOOS, LinkType: layers.LinkTypeEthernet, SnapLength: maxPacket, TimestampResolution: 9,
		}
		var err error
		if c.file == nil {
			c.file, err = pcapgo.NewNgWriterInterface(out, about, pcapgo.NgWriterOptions{
				SectionInfo: pcapgo.NgSectionInfo{Hardware: runtime.GOARCH, OS: runtime.GOOS, Application: "tabane"},
			})
		} else {
			_, err = c.file.AddInterface(about)
		}
		if err != nil {
			return err
		}
	}
	return c.file.Flush()
}

// footer ends the file; the drops are those of the one socket, so they are told with its first interface.
func (c *capture) footer() error {
	err := c.file.WriteInterfaceStats(0, pcapgo.NgInterfaceStatistics{
		LastUpdate: time.Now(), PacketsReceived: pcapgo.NgNoValue64, PacketsDropped: c.stats.Dropped,
	})
	return errors.Join(err, c.file.Flush())
}

func (c *capture) countDrops() {
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		if s, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			c.stats.Dropped += uint64(s.Drops)
		}
	})
}

// timestamp is when the kernel saw the packet.
func timestamp(oob []byte) time.Time {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return time.Now()
	}
	for _, m := range messages {
		if m.Header.Level == syscall.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			sec := binary.NativeEndian.Uint64(m.Data)
			nsec := binary.NativeEndian.Uint64(m.Data[8:])
			if sec <= math.MaxInt64 && nsec < uint64(time.Second) {
				return time.Unix(int64(sec), int64(nsec))
			}
		}
	}
	return time.Now()
}
