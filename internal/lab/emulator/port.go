package emulator

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	etherHeader = 14
	vlanTag     = 4
	// ringSize is the memory of a port's receive ring in bytes: 4096 frames of up to 1.9 kB.
	ringSize  = 8 << 20
	blockSize = 1 << 16
	// sendBuffer limits the bytes that the receiving node has not consumed yet.
	sendBuffer = 8 << 20
	// batch is the number of frames per sendmmsg; the receiving node's stack handles them
	// before it returns.
	batch = 32
)

// port is one end of the link: a packet socket with a receive ring.
//
// The ring is version 2: version 3 delivers frames in blocks, whose timeout has a resolution of 1
// ms. The timestamps are arrival times, independent of when a frame is read.
type port struct {
	name  string
	index int
	fd    int
	ring  []byte
	slots int
	slot  int // bytes of a ring slot
	next  int // ring slot that the kernel fills next

	vectors  [batch]unix.Iovec
	messages [batch]message
}

// message is the kernel's struct mmsghdr.
type message struct {
	header unix.Msghdr
	length uint32
	_      [4]byte
}

// openPort opens a port in the network namespace of the calling thread. longest is the maximum
// frame length in bytes.
func openPort(name string, index, longest int) (_ *port, err error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	p := &port{name: name, index: index, fd: fd}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	for _, o := range []struct {
		name          string
		level, option int
		value         int
	}{
		{"PACKET_VERSION", unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2},
		{"PACKET_IGNORE_OUTGOING", unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1},
		{"PACKET_QDISC_BYPASS", unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1},
		{"SO_SNDBUFFORCE", unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.option, o.value); err != nil {
			return nil, fmt.Errorf("set %q: %w", o.name, err)
		}
	}
	for p.slot = 2048; p.slot < longest+int(unsafe.Sizeof(unix.Tpacket2Hdr{}))+128; {
		p.slot *= 2
	}
	p.slots = ringSize / p.slot
	ring := unix.TpacketReq{
		Block_size: uint32(max(blockSize, p.slot)), Frame_size: uint32(p.slot),
		Block_nr: uint32(ringSize / max(blockSize, p.slot)), Frame_nr: uint32(p.slots),
	}
	if err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &ring); err != nil {
		return nil, fmt.Errorf("make receive ring of %d frames: %w", p.slots, err)
	}
	if p.ring, err = unix.Mmap(fd, 0, ringSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map receive ring: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: index}); err != nil {
		return nil, fmt.Errorf("bind packet socket: %w", err)
	}
	for i := range p.messages {
		p.messages[i].header = unix.Msghdr{Iov: &p.vectors[i]}
		p.messages[i].header.SetIovlen(1)
	}
	return p, nil
}

// networkOrder converts a protocol number to network byte order.
func networkOrder(v uint16) uint16 {
	b := [2]byte{byte(v >> 8), byte(v)}
	return *(*uint16)(unsafe.Pointer(&b))
}

func (p *port) close() error {
	var err error
	if p.ring != nil {
		err = unix.Munmap(p.ring)
		p.ring = nil
	}
	if p.fd >= 0 {
		err = errors.Join(err, unix.Close(p.fd))
		p.fd = -1
	}
	return err
}

// frame is a frame in the ring. It is valid until done.
type frame struct {
	status *uint32
	header *unix.Tpacket2Hdr
	bytes  []byte
}

// peek returns the next frame of the ring, and false when there is none.
func (p *port) peek() (frame, bool) {
	base := p.next * p.slot
	header := (*unix.Tpacket2Hdr)(unsafe.Pointer(&p.ring[base]))
	f := frame{status: &header.Status, header: header}
	// The kernel writes the status last.
	if atomic.LoadUint32(f.status)&unix.TP_STATUS_USER == 0 {
		return frame{}, false
	}
	from := base + int(header.Mac)
	f.bytes = p.ring[from : from+int(header.Snaplen)]
	return f, true
}

// done returns the ring slot of the frame to the kernel.
func (p *port) done(f frame) {
	atomic.StoreUint32(f.status, unix.TP_STATUS_KERNEL)
	p.next++
	if p.next == p.slots {
		p.next = 0
	}
}

// whole reports whether the frame in the ring is not truncated.
func (f frame) whole() bool { return f.header.Snaplen == f.header.Len }

// summed reports whether the frame's checksum is complete, not left to hardware.
func (f frame) summed() bool { return f.header.Status&unix.TP_STATUS_CSUMNOTREADY == 0 }

// tagged reports whether the frame had a VLAN tag, which the kernel has moved to the ring header.
func (f frame) tagged() bool { return f.header.Status&unix.TP_STATUS_VLAN_VALID != 0 }

// stamp returns the time at which the kernel received the frame, in nanoseconds of CLOCK_REALTIME.
func (f frame) stamp() int64 { return int64(f.header.Sec)*int64(time.Second) + int64(f.header.Nsec) }

// length returns the length of the frame on the wire, VLAN tag included.
func (f frame) length() int {
	if f.tagged() {
		return len(f.bytes) + vlanTag
	}
	return len(f.bytes)
}

// copyTo copies the frame as on the wire, with its VLAN tag inserted, and returns the length.
func (f frame) copyTo(to []byte) int {
	const addresses = 12
	if !f.tagged() || len(f.bytes) < addresses {
		return copy(to, f.bytes)
	}
	copy(to, f.bytes[:addresses])
	protocol := uint16(unix.ETH_P_8021Q)
	if f.header.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
		protocol = f.header.Vlan_tpid
	}
	tci := f.header.Vlan_tci
	copy(to[addresses:], []byte{byte(protocol >> 8), byte(protocol), byte(tci >> 8), byte(tci)})
	return addresses + vlanTag + copy(to[addresses+vlanTag:], f.bytes[addresses:])
}

// stage sets the i-th frame of the next send.
func (p *port) stage(i int, bytes []byte) {
	p.vectors[i].Base = &bytes[0]
	p.vectors[i].SetLen(len(bytes))
}

// send sends the staged frames first to end-1 and returns how many the kernel accepted. The error
// is that of the next frame, or nil if the kernel stopped there without an error.
func (p *port) send(first, end int) (int, error) {
	for again := true; ; {
		n, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(p.fd), uintptr(unsafe.Pointer(&p.messages[first])), uintptr(end-first), 0, 0, 0)
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR:
		case unix.ENETDOWN:
			// It may be a pending error from before the interface was up; reading it
			// clears it.
			if !again {
				return 0, e
			}
			again = false
		default:
			return 0, e
		}
	}
}

// overruns returns the number of frames dropped because the ring was full since the last call.
func (p *port) overruns() (uint64, error) {
	s, err := unix.GetsockoptTpacketStats(p.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0, fmt.Errorf("read statistics of packet socket: %w", err)
	}
	return uint64(s.Drops), nil
}

// clear reads and so clears the pending error of the socket. Until then poll returns at once.
func (p *port) clear() error {
	e, err := unix.GetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	if e != 0 {
		return unix.Errno(e)
	}
	return nil
}
