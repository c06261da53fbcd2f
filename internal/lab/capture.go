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
	c, err := openPackets(namespace, iface, maxPacket)
	if err != nil {
		return stats, err
	}
	defer func() { err = errors.Join(err, c.close()) }()

	out := os.Stdout
	if file != "-" {
		if out, err = os.Create(file); err != nil {
			return stats, err
		}
		defer func() { err = errors.Join(err, out.Close()) }()
	}
	w := &pcapng{packets: c, ids: map[int]int{}}
	if err := w.header(out); err != nil {
		return stats, err
	}
	c.take, c.quiet = w.write, w.file.Flush
	err = errors.Join(c.run(ctx), w.footer())
	return c.stats, err
}

// packets is one packet socket and the interfaces that it sees.
type packets struct {
	node   *space
	socket *os.File
	// names are the interfaces to capture by index; detours lead from one of them to an emulator, and show what it sends.
	names   map[int]string
	detours map[int]int
	stats   CaptureStats
	// take is told of a packet of length n, of which data has as much as fits; quiet that no more wait.
	take      func(c *packets, n, index int, at time.Time, out bool) error
	quiet     func() error
	data, oob []byte
}

// openPackets sees packets of a namespace from now on. An empty iface is all interfaces but the loopback; at most snap bytes of a
// packet are kept.
func openPackets(namespace, iface string, snap int) (*packets, error) {
	node, err := openSpace(namespace)
	if err != nil {
		return nil, err
	}
	c := &packets{node: node, data: make([]byte, snap), oob: make([]byte, 128)}
	if err := netns.Do(namespace, func() error { return c.open(iface) }); err != nil {
		node.close()
		return nil, err
	}
	return c, nil
}

func (c *packets) close() error {
	c.node.close()
	return c.socket.Close()
}

// pcapng is a file that packets are written to.
type pcapng struct {
	packets *packets
	ids     map[int]int // the interfaces' numbers in the file, by index
	file    *pcapgo.NgWriter
}

// open opens the socket in the namespace of the calling thread.
func (c *packets) open(iface string) error {
	all, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	c.names, c.detours = map[int]string{}, map[int]int{}
	bind := 0
	for _, i := range all {
		of, detour := detourOf(i.Name)
		switch {
		case detour:
			c.detours[i.Index] = of
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
	for _, of := range c.detours {
		if of == bind {
			bind = 0
		}
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

// run takes packets until ctx ends or the node goes.
func (c *packets) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { c.socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	defer c.countDrops()
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
					if c.quiet != nil {
						failed = c.quiet()
					}
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
		if gone(c.node) {
			return errors.New("the node is gone")
		}
		next = time.Now().Add(checkEvery)
	}
}

// last copies the packets that wait when the capture ends, but under a flood does not go on for ever.
func (c *packets) last(raw syscall.RawConn) error {
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
func (c *packets) drain(fd int) (more bool, err error) {
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
		if err := c.packet(n, timestamp(c.oob[:oobn]), from); err != nil {
			return false, err
		}
	}
	return true, nil
}

// gone reports whether the namespace's name means another one now, or none. The inode number is that of one that is still
// open, so it cannot have been reused.
func gone(was *space) bool {
	s, err := openSpace(was.name)
	if err != nil {
		return true
	}
	defer s.close()
	return s.inode != was.inode
}

// packet takes one packet of length n.
func (c *packets) packet(n int, at time.Time, from unix.Sockaddr) error {
	ll, ok := from.(*unix.SockaddrLinklayer)
	if !ok {
		return nil
	}
	index, out := ll.Ifindex, ll.Pkttype == unix.PACKET_OUTGOING
	if of, detour := c.detours[index]; detour && out {
		index = of
	}
	if _, ok := c.names[index]; !ok {
		return nil
	}
	c.stats.Packets++
	c.stats.Bytes += uint64(n)
	return c.take(c, n, index, at, out)
}

// write adds one packet.
func (w *pcapng) write(c *packets, n, index int, at time.Time, out bool) error {
	direction := pcapgo.NgEpbFlagDirectionInbound
	if out {
		direction = pcapgo.NgEpbFlagDirectionOutbound
	}
	captured := min(n, len(c.data))
	return w.file.WritePacketWithOptions(
		gopacket.CaptureInfo{Timestamp: at, CaptureLength: captured, Length: n, InterfaceIndex: w.ids[index]},
		c.data[:captured], pcapgo.NgPacketOptions{Flags: &pcapgo.NgEpbFlags{Direction: direction}})
}

// header starts the file and declares the interfaces.
func (w *pcapng) header(out io.Writer) error {
	for id, index := range slices.Sorted(maps.Keys(w.packets.names)) {
		w.ids[index] = id // the file numbers them as they come
		about := pcapgo.NgInterface{
			Name: w.packets.names[index], OS: runtime.GOOS, LinkType: layers.LinkTypeEthernet, SnapLength: maxPacket, TimestampResolution: 9,
		}
		var err error
		if w.file == nil {
			w.file, err = pcapgo.NewNgWriterInterface(out, about, pcapgo.NgWriterOptions{
				SectionInfo: pcapgo.NgSectionInfo{Hardware: runtime.GOARCH, OS: runtime.GOOS, Application: "tabane"},
			})
		} else {
			_, err = w.file.AddInterface(about)
		}
		if err != nil {
			return err
		}
	}
	return w.file.Flush()
}

// footer ends the file; the drops are those of the one socket, so they are told with its first interface.
func (w *pcapng) footer() error {
	err := w.file.WriteInterfaceStats(0, pcapgo.NgInterfaceStatistics{
		LastUpdate: time.Now(), PacketsReceived: pcapgo.NgNoValue64, PacketsDropped: w.packets.stats.Dropped,
	})
	return errors.Join(err, w.file.Flush())
}

func (c *packets) countDrops() {
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
