// Package offload reads and switches the offloads of network interfaces (ethtool(8)) that merge or
// split packets. It decides nothing about when they may be on.
package offload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Prepare turns off the offloads (TSO, GSO, GRO, checksums) of an interface in the calling thread's
// network namespace, so that its link receives frames as on the wire. A Link prepares its own two
// ends; the caller prepares the ends in the nodes.
//
// GSO packets cannot pass through the relay (PACKET_VNET_HDR): virtio_net_hdr cannot describe SRv6
// encapsulation, and loss, delay and rate apply to frames.
func Prepare(iface string) error {
	if err := prepare(iface); err != nil {
		return fmt.Errorf("turn off offloads of interface %q: %w", iface, err)
	}
	return nil
}

// offload reports whether a feature makes packets differ from frames on the wire.
func offload(feature string) bool {
	switch {
	case strings.HasPrefix(feature, "tx-checksum-"),
		strings.HasPrefix(feature, "tx-") && strings.HasSuffix(feature, "-segmentation"),
		strings.HasPrefix(feature, "tx-gso-"),
		strings.HasPrefix(feature, "rx-gro"), feature == "rx-lro", feature == "rx-udp-gro-forwarding":
		return true
	}
	return false
}

const (
	featureName = 32 // ETH_GSTRING_LEN
	featureSet  = 4  // ETH_SS_FEATURES
)

// request is the kernel's struct ifreq with a pointer.
type request struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte // the union is larger than a pointer
}

// ethtool asks the driver of an interface.
type ethtool struct {
	fd   int
	name string
}

func (e ethtool) ask(what string, data []byte) error {
	var r request
	if copy(r.name[:unix.IFNAMSIZ-1], e.name) < len(e.name) {
		return errors.New("name is too long")
	}
	r.data = unsafe.Pointer(&data[0])
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(e.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
	runtime.KeepAlive(data)
	if errno != 0 {
		return fmt.Errorf("%s: %w", what, errno)
	}
	return nil
}

// word is the byte order of the structures.
var word = binary.NativeEndian

// withEthtool calls f to ask the driver of an interface.
func withEthtool(iface string, f func(ethtool) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(ethtool{fd, iface})
}

// features are those of an interface, by their numbers.
type features struct {
	names []string
	// state is struct ethtool_gfeatures: each block of 32 features has the masks available,
	// requested, active and never_changed.
	state []byte
}

func (f *features) available(i int) bool { return word.Uint32(f.state[8+16*(i/32):])>>(i%32)&1 != 0 }
func (f *features) active(i int) bool    { return word.Uint32(f.state[8+16*(i/32)+8:])>>(i%32)&1 != 0 }

// features reads the features of the interface.
func (e ethtool) features() (*features, error) {
	// struct ethtool_sset_info with one length.
	info := make([]byte, 20)
	word.PutUint32(info, unix.ETHTOOL_GSSET_INFO)
	word.PutUint64(info[8:], 1<<featureSet)
	if err := e.ask("count features", info); err != nil {
		return nil, err
	}
	count := int(word.Uint32(info[16:]))
	if count < 1 || count > math.MaxUint16 {
		return nil, fmt.Errorf("count features: kernel says %d", count)
	}
	// struct ethtool_gstrings.
	names := make([]byte, 12+count*featureName)
	word.PutUint32(names, unix.ETHTOOL_GSTRINGS)
	word.PutUint32(names[4:], featureSet)
	word.PutUint32(names[8:], uint32(count))
	if err := e.ask("list features", names); err != nil {
		return nil, err
	}
	blocks := (count + 31) / 32
	f := &features{state: make([]byte, 8+16*blocks)}
	word.PutUint32(f.state, unix.ETHTOOL_GFEATURES)
	word.PutUint32(f.state[4:], uint32(blocks))
	for i := range count {
		f.names = append(f.names, unix.ByteSliceToString(names[12+i*featureName:][:featureName]))
	}
	return f, e.ask("read features", f.state)
}

// Merging returns the interfaces that merge packets into super-packets (GRO) before those of a list
// receive them: the ports of a bridge or bond, and what is below a VLAN or MACVLAN, else the
// interface itself. Each is named once.
func Merging(list []string) ([]string, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var bottom []string
	for _, name := range list {
		at := slices.IndexFunc(all, func(l netlink.Link) bool { return l.Attrs().Name == name })
		if at < 0 {
			return nil, fmt.Errorf("read offloads of interface %q: %w", name, unix.ENODEV)
		}
		bottom = append(bottom, below(all, all[at])...)
	}
	slices.Sort(bottom)
	var merging []string
	for _, name := range slices.Compact(bottom) {
		on, err := merges(name)
		if err != nil {
			return nil, err
		}
		if on {
			merging = append(merging, name)
		}
	}
	return merging, nil
}

// below returns the names of the interfaces at the bottom of a stack.
func below(all []netlink.Link, top netlink.Link) (bottom []string) {
	for _, l := range all {
		if l.Attrs().MasterIndex == top.Attrs().Index || isUpper(top) && l.Attrs().Index == top.Attrs().ParentIndex {
			bottom = append(bottom, below(all, l)...)
		}
	}
	if len(bottom) == 0 {
		return []string{top.Attrs().Name}
	}
	return bottom
}

// isUpper reports whether an interface receives what its parent has received, in this network
// namespace.
func isUpper(l netlink.Link) bool {
	switch l.Type() {
	case "vlan", "macvlan":
		return l.Attrs().NetNsID < 0
	}
	return false
}

// Offloads returns the offloads of an interface that Prepare turns off and are on.
func Offloads(iface string) (on []string, err error) {
	err = withEthtool(iface, func(e ethtool) error {
		f, err := e.features()
		if err == nil {
			on = f.offloads()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read offloads of interface %q: %w", iface, err)
	}
	return on, nil
}

// offloads returns those that are on and can be turned off.
func (f *features) offloads() (on []string) {
	for i, name := range f.names {
		if offload(name) && f.available(i) && f.active(i) {
			on = append(on, name)
		}
	}
	return on
}

// merges reports whether GRO is on.
func merges(iface string) (on bool, err error) {
	err = withEthtool(iface, func(e ethtool) error {
		f, err := e.features()
		if err != nil {
			return err
		}
		i := slices.Index(f.names, "rx-gro")
		on = i >= 0 && f.active(i)
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("read offloads of interface %q: %w", iface, err)
	}
	return on, nil
}

func prepare(iface string) error {
	return withEthtool(iface, func(e ethtool) error {
		f, err := e.features()
		if err != nil {
			return err
		}
		// struct ethtool_sfeatures: each block has a mask of features to change and their values,
		// which stay 0.
		blocks := (len(f.names) + 31) / 32
		change := make([]byte, 8+8*blocks)
		word.PutUint32(change, unix.ETHTOOL_SFEATURES)
		word.PutUint32(change[4:], uint32(blocks))
		for i, name := range f.names {
			if offload(name) && f.available(i) {
				valid := change[8+8*(i/32):]
				word.PutUint32(valid, word.Uint32(valid)|uint32(1)<<(i%32))
			}
		}
		if err := e.ask("change features", change); err != nil {
			return err
		}
		// The kernel may leave a feature on without returning an error.
		if f, err = e.features(); err != nil {
			return err
		}
		if kept := f.offloads(); len(kept) > 0 {
			return fmt.Errorf("kernel keeps %s", strings.Join(kept, ", "))
		}
		return nil
	})
}
