package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"unsafe"

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

func prepare(iface string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ask := func(what string, data []byte) error {
		var r request
		if copy(r.name[:unix.IFNAMSIZ-1], iface) < len(iface) {
			return errors.New("name is too long")
		}
		r.data = unsafe.Pointer(&data[0])
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
		runtime.KeepAlive(data)
		if e != 0 {
			return fmt.Errorf("%s: %w", what, e)
		}
		return nil
	}
	word := binary.NativeEndian

	// struct ethtool_sset_info with one length.
	info := make([]byte, 20)
	word.PutUint32(info, unix.ETHTOOL_GSSET_INFO)
	word.PutUint64(info[8:], 1<<featureSet)
	if err := ask("count features", info); err != nil {
		return err
	}
	count := int(word.Uint32(info[16:]))
	if count < 1 || count > math.MaxUint16 {
		return fmt.Errorf("count features: kernel says %d", count)
	}
	// struct ethtool_gstrings.
	names := make([]byte, 12+count*featureName)
	word.PutUint32(names, unix.ETHTOOL_GSTRINGS)
	word.PutUint32(names[4:], featureSet)
	word.PutUint32(names[8:], uint32(count))
	if err := ask("list features", names); err != nil {
		return err
	}
	blocks := (count + 31) / 32
	// struct ethtool_sfeatures: each block has a mask of features to change and their values,
	// which stay 0.
	change := make([]byte, 8+8*blocks)
	word.PutUint32(change, unix.ETHTOOL_SFEATURES)
	word.PutUint32(change[4:], uint32(blocks))
	// struct ethtool_gfeatures: each block has the masks available, requested, active and
	// never_changed.
	state := make([]byte, 8+16*blocks)
	word.PutUint32(state, unix.ETHTOOL_GFEATURES)
	word.PutUint32(state[4:], uint32(blocks))
	if err := ask("read features", state); err != nil {
		return err
	}
	for i := range count {
		name := unix.ByteSliceToString(names[12+i*featureName:][:featureName])
		bit := uint32(1) << (i % 32)
		if offload(name) && word.Uint32(state[8+16*(i/32):])&bit != 0 {
			valid := change[8+8*(i/32):]
			word.PutUint32(valid, word.Uint32(valid)|bit)
		}
	}
	if err := ask("change features", change); err != nil {
		return err
	}
	// The kernel may leave a feature on without returning an error.
	if err := ask("read features", state); err != nil {
		return err
	}
	var kept []string
	for i := range count {
		name := unix.ByteSliceToString(names[12+i*featureName:][:featureName])
		available, active := word.Uint32(state[8+16*(i/32):]), word.Uint32(state[8+16*(i/32)+8:])
		if offload(name) && available&active>>(i%32)&1 != 0 {
			kept = append(kept, name)
		}
	}
	if len(kept) > 0 {
		return fmt.Errorf("kernel keeps %s", strings.Join(kept, ", "))
	}
	return nil
}
