package netnstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/checksum"
	"github.com/tabane/tabane/internal/kernel/netns"
)

// Echoes is what came back of echo requests.
type Echoes struct {
	Received   int // requests that were answered
	Duplicates int // answers beyond the first to a request
	Shortest   time.Duration
	Times      []time.Duration // from each request to its first answer, in the order of the answers
}

const (
	echoInterval = 10 * time.Millisecond
	// echoWait is how long the answers to the last request are waited for.
	echoWait = time.Second
)

// Echo sends n ICMP echo requests from a network namespace, with payload bytes of data each, which
// may not be fragmented. An empty name is the namespace of the process.
func Echo(namespace string, to netip.Addr, n, payload int) (Echoes, error) {
	network, level, option, request, reply := "ip4:icmp", unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, byte(8), byte(0)
	if to.Is6() {
		network, level, option, request, reply = "ip6:ipv6-icmp", unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, 128, 129
	}
	var conn *net.IPConn
	dial := func() (err error) {
		conn, err = net.DialIP(network, nil, &net.IPAddr{IP: to.AsSlice()})
		return err
	}
	err := error(nil)
	if namespace == "" {
		err = dial()
	} else {
		err = netns.Do(namespace, dial)
	}
	if err != nil {
		return Echoes{}, err
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, unix.IP_PMTUDISC_DO) }), err)
	}
	if err != nil {
		return Echoes{}, err
	}
	id := uint16(os.Getpid())
	sent := make([]time.Time, n)
	answers := make([]int, n)
	var e Echoes
	// receive takes answers until the time, or until each request has one.
	receive := func(until time.Time, all bool) error {
		if err := conn.SetReadDeadline(until); err != nil {
			return err
		}
		for b := make([]byte, payload+100); !all || e.Received < n; {
			size, _, err := conn.ReadFromIP(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			// An ICMP error about an earlier request means that this one has no reply.
			if errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ECONNREFUSED) {
				continue
			}
			if err != nil {
				return err
			}
			seq := 0
			if size == 8+payload && b[0] == reply && binary.BigEndian.Uint16(b[4:]) == id {
				seq = int(binary.BigEndian.Uint16(b[6:]))
			}
			if seq == 0 || seq > n {
				continue
			}
			if answers[seq-1]++; answers[seq-1] > 1 {
				e.Duplicates++
				continue
			}
			took := time.Since(sent[seq-1])
			if e.Times = append(e.Times, took); e.Received == 0 || took < e.Shortest {
				e.Shortest = took
			}
			e.Received++
		}
		return nil
	}
	for i := range n {
		b := make([]byte, 8+payload)
		b[0] = request
		binary.BigEndian.PutUint16(b[4:], id)
		binary.BigEndian.PutUint16(b[6:], uint16(i+1))
		if to.Is4() { // of ICMPv6, the kernel does it
			binary.BigEndian.PutUint16(b[2:], checksum.Of(b))
		}
		sent[i] = time.Now()
		if _, err := conn.Write(b); err != nil {
			return e, fmt.Errorf("echo request to %s: %w", to, err)
		}
		if err := receive(sent[i].Add(echoInterval), false); err != nil {
			return e, err
		}
	}
	return e, receive(time.Now().Add(echoWait), true)
}
