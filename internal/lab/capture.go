package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/analysis/pcap"
	"github.com/tabane/tabane/internal/kernel/afpacket"
	"github.com/tabane/tabane/internal/kernel/netns"
)

// CaptureStats counts the packets of a capture.
type CaptureStats struct {
	Packets, Bytes uint64
	// Dropped counts packets lost because the kernel's buffer was full.
	Dropped uint64
}

// Capture writes the packets of a node's interface to a pcapng file with timestamps in nanoseconds,
// until ctx ends, which is no error. An empty iface captures all interfaces except the loopback.
// The file "-" is the standard output. With offloads on, packets can be larger than the MTU.
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
	c, err := openPackets(namespace, iface, afpacket.MaxLength)
	if err != nil {
		return stats, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()

	out := os.Stdout
	if file != "-" {
		if out, err = os.Create(file); err != nil {
			return stats, err
		}
		defer func() { err = errors.Join(err, out.Close()) }()
	}
	w := &pcapng{ids: map[int]int{}}
	if err := w.header(out, c.names); err != nil {
		return stats, err
	}
	err = c.Run(ctx, afpacket.Handler{Packet: w.write, Idle: w.file.Flush})
	err = errors.Join(err, w.footer(c.Stats()))
	return c.Stats(), err
}

// Packets captures the packets of a node's interfaces.
type Packets struct {
	node   *space
	socket *afpacket.Socket
	// names maps the indexes of captured interfaces to names. detours maps the index of a
	// detour to that of its interface: packets sent on a detour are captured as sent by the
	// interface.
	names   map[int]string
	detours map[int]int
	stats   CaptureStats
}

func openPackets(namespace, iface string, snap int) (*Packets, error) {
	node, err := openSpace(namespace)
	if err != nil {
		return nil, err
	}
	c := &Packets{node: node, names: map[int]string{}, detours: map[int]int{}}
	if err := netns.Do(namespace, func() error { return c.open(iface, snap) }); err != nil {
		node.close()
		return nil, err
	}
	return c, nil
}

// open opens the socket in the namespace of the calling thread.
func (c *Packets) open(iface string, snap int) (err error) {
	all, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
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
	c.socket, err = afpacket.Open(afpacket.Options{Interface: bind, SnapLength: snap})
	return err
}

// Close closes the socket. Run must have returned.
func (c *Packets) Close() error {
	c.node.close()
	return c.socket.Close()
}

// Stats returns the counters of the capture, which are final once Run has returned.
func (c *Packets) Stats() CaptureStats {
	s := c.stats
	s.Dropped = c.socket.Dropped()
	return s
}

// Run passes packets to the handler until ctx ends, which is no error, or the node is removed.
func (c *Packets) Run(ctx context.Context, h afpacket.Handler) error {
	handle := h.Packet
	h.Packet = func(p afpacket.Packet) error {
		if of, detour := c.detours[p.Interface]; detour && p.Sent {
			p.Interface = of
		}
		if _, ok := c.names[p.Interface]; !ok {
			return nil
		}
		c.stats.Packets++
		c.stats.Bytes += uint64(p.Length)
		return handle(p)
	}
	h.Check = func() error {
		// The socket keeps the namespace alive, so reads do not fail when the lab is
		// removed.
		if gone(c.node) {
			return errors.New("the node is gone")
		}
		return nil
	}
	return c.socket.Run(ctx, h)
}

// gone reports whether the namespace has been deleted or replaced by another one of the same name.
// was is open, so its inode number cannot have been reused.
func gone(was *space) bool {
	s, err := openSpace(was.name)
	if err != nil {
		return true
	}
	defer s.close()
	return s.inode != was.inode
}

// pcapng writes packets to a pcapng file.
type pcapng struct {
	ids  map[int]int // interface IDs in the file, by interface index
	file *pcap.NgWriter
}

// write adds one packet.
func (w *pcapng) write(p afpacket.Packet) error {
	direction := pcap.Inbound
	if p.Sent {
		direction = pcap.Outbound
	}
	return w.file.Write(pcap.Packet{
		Interface: w.ids[p.Interface], At: p.At.UnixNano(), Data: p.Data, Length: p.Length, Direction: direction,
	})
}

// header writes the section header and the interface descriptions.
func (w *pcapng) header(out io.Writer, names map[int]string) (err error) {
	w.file, err = pcap.NewNgWriter(out, pcap.Section{Hardware: runtime.GOARCH, OS: runtime.GOOS, Application: "tabane"})
	if err != nil {
		return err
	}
	for _, index := range slices.Sorted(maps.Keys(names)) {
		w.ids[index], err = w.file.AddInterface(pcap.Interface{
			Name: names[index], OS: runtime.GOOS, Link: pcap.LinkEthernet, SnapLength: afpacket.MaxLength,
		})
		if err != nil {
			return err
		}
	}
	return w.file.Flush()
}

// footer writes the interface statistics. Drops are counted for the socket as a whole, so they are
// written for the first interface.
func (w *pcapng) footer(stats CaptureStats) error {
	return errors.Join(w.file.WriteDropped(0, time.Now().UnixNano(), stats.Dropped), w.file.Flush())
}
