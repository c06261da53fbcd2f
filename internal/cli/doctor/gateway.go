package doctor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/gateway/relay"
	"github.com/tabane/tabane/internal/gateway/tun"
	"github.com/tabane/tabane/internal/gateway/udp"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/role"
)

// tryTUN makes a TUN device in a namespace of its own, and returns whether it takes UDP
// super-packets.
func tryTUN() (udpOffload bool, err error) {
	err = isolated(func() (err error) {
		udpOffload, err = tun.Probe()
		return err
	})
	return udpOffload, err
}

// gatewayOffloads returns what the speed of a gateway depends on.
func gatewayOffloads() []Finding {
	device := Finding{Check: "TUN device", State: OK, Meaning: "a gateway takes and gives packets, TCP in super-packets"}
	super := Finding{Check: "TUN UDP offload", State: OK, Optional: true, Meaning: "a gateway takes and gives UDP in super-packets too"}
	switch offload, err := tryTUN(); {
	case err != nil:
		device.check(err)
		super.State, super.Meaning = Unknown, "needs the TUN device"
		if errors.Is(err, ErrNotChecked) {
			device.Remedy = "run as root to check"
		}
	case !offload:
		super.State, super.Meaning, super.Remedy = Limited, "a gateway takes UDP packets one by one, at several times the CPU time", "use Linux 6.2 or newer"
	}
	list := []Finding{device, super}
	segment, gro := udp.Probe()
	for _, f := range []struct {
		check, good string
		err         error
	}{
		{"UDP segmentation", "a gateway sends packets in batches (UDP_SEGMENT)", segment},
		{"UDP receive offload", "a gateway receives packets in batches (UDP_GRO)", gro},
	} {
		finding := Finding{Check: f.check, State: OK, Optional: true, Meaning: f.good}
		finding.check(f.err)
		list = append(list, finding)
	}
	return list
}

// wantBuffer is the size of a gateway's socket buffers in bytes.
const wantBuffer = 8 << 20

// socketBuffers checks whether the kernel gives sockets the buffers that bursts need. unprivileged
// is why this process is bounded by the limits for all.
func socketBuffers(sysctl func(string) (string, error), unprivileged error) Finding {
	f := Finding{Check: "socket buffers", State: OK, Meaning: "a gateway sets its buffers itself, whatever the limits are"}
	if unprivileged == nil {
		return f
	}
	f.Meaning = "a gateway without CAP_NET_ADMIN has buffers for bursts"
	var small, remedy []string
	for _, key := range []string{"net.core.rmem_max", "net.core.wmem_max"} {
		text, err := sysctl(key)
		n, bad := strconv.Atoi(text)
		if err = errors.Join(err, bad); err != nil {
			f.State, f.Meaning = Unknown, err.Error()
			return f
		}
		if n < wantBuffer {
			small = append(small, fmt.Sprintf("%s is %d", key, n))
			remedy = append(remedy, fmt.Sprintf("%s=%d", key, wantBuffer))
		}
	}
	if len(small) > 0 {
		f.State, f.Remedy = Limited, "sysctl -w "+strings.Join(remedy, " ")
		f.Meaning = strings.Join(small, ", ") + ": without CAP_NET_ADMIN a gateway loses bursts"
	}
	return f
}

// openRelay checks whether a member of an alliance relays open messages.
func openRelay() Finding {
	f := Finding{Check: "relay of open messages", State: OK, Optional: true, Meaning: "a member relays for leaders whose packets are not encrypted (eBPF)"}
	p, err := relay.Load(relay.Options{})
	if err == nil {
		err = p.Close()
	}
	var missing *feature.Error
	switch {
	case errors.As(err, &missing):
		f.State, f.Meaning, f.Remedy = Limited, "a member relays only for leaders whose packets are encrypted: "+missing.Cause(), missing.Remedy
	case err != nil:
		f.State, f.Meaning = Unknown, err.Error()
	}
	return f
}

// gatewayPins returns the pins of gateways in all network namespaces.
func gatewayPins() ([]bpf.Pinned, error) { return bpf.AllPinned(role.Gateway) }

// openPlane checks what the programs of a gateway with open peers go on by when the daemon is
// killed. list returns those pins.
func openPlane(list func() ([]bpf.Pinned, error)) Finding {
	f := Finding{Check: "pins", State: OK, Meaning: "no program of a gateway is pinned"}
	all, err := list()
	if err != nil {
		f.unknown(err)
		return f
	}
	var used, orphaned, stale []string
	for _, p := range all {
		switch {
		case p.Stale():
			stale = append(stale, p.Dir)
		case !p.Used:
			orphaned = append(orphaned, p.Dir)
		default:
			used = append(used, p.Dir)
		}
	}
	if len(used) > 0 {
		f.Meaning = "programs of a running gateway are pinned in " + strings.Join(used, ", ") + ": they go on if it is killed"
	}
	switch {
	case len(orphaned) > 0:
		f.State, f.Meaning = Limited, "programs go on without a gateway, by the pins in "+strings.Join(orphaned, ", ")
		f.Remedy = "start the gateway, which takes them over, or rm -r " + strings.Join(orphaned, " ")
	case len(stale) > 0:
		f.State, f.Meaning = Limited, "pins of network namespaces that are gone hold memory: "+strings.Join(stale, ", ")
		f.Remedy = "start a gateway, which removes them, or rm -r " + strings.Join(stale, " ")
	}
	return f
}

// kernelClock returns the state of the kernel's clock (adjtimex(2)).
func kernelClock() (synchronized bool, err error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, err
}

// clock checks whether the clock is kept right: a gateway that is started again with a clock that
// was set back is refused by its peers at first.
func clock(read func() (synchronized bool, err error)) Finding {
	f := Finding{Check: "clock", State: OK, Optional: true, Meaning: "is synchronized: sessions of gateways begin at once after a restart"}
	switch synchronized, err := read(); {
	case err != nil:
		f.State, f.Meaning = Unknown, fmt.Sprintf("read state of clock: %v", err)
	case !synchronized:
		f.State, f.Remedy = Limited, "timedatectl set-ntp true, or run chrony"
		f.Meaning = "is not synchronized: a gateway whose clock was set back waits some seconds for its sessions after a restart"
	}
	return f
}

// minLinkMTU is the smallest MTU in bytes of a link that carries packets of 1280 bytes, IPv6's
// minimum (RFC 8200 section 5), in the tunnel over IPv6, whose headers have 92.
const minLinkMTU = 1280 + 92

// isTUN reports whether an interface is a TUN or TAP device, such as a gateway's own, which is no
// line.
func isTUN(name string) bool {
	_, err := os.Stat(filepath.Join("/sys/class/net", name, "tun_flags"))
	return err == nil
}

// tunnelMTU checks whether whole packets fit into the tunnel on all interfaces that are up.
func tunnelMTU(interfaces func() ([]net.Interface, error)) Finding {
	f := Finding{Check: "MTU", State: OK, Meaning: "a gateway's tunnel carries packets of 1280 bytes whole over every interface"}
	list, err := interfaces()
	var small, remedy []string
	for _, i := range list {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 && i.MTU < minLinkMTU && !isTUN(i.Name) {
			small = append(small, fmt.Sprintf("%s has %d", i.Name, i.MTU))
			remedy = append(remedy, fmt.Sprintf("ip link set %s mtu %d", i.Name, minLinkMTU))
		}
	}
	switch {
	case err != nil:
		f.State, f.Meaning = Unknown, fmt.Sprintf("list interfaces: %v", err)
	case len(small) > 0:
		f.State, f.Remedy = Limited, strings.Join(remedy, "; ")+"; or do not use it as a path"
		f.Meaning = strings.Join(small, ", ") + fmt.Sprintf(", less than %d: as a path of a gateway it carries packets of 1280 bytes in fragments", minLinkMTU)
	}
	return f
}
