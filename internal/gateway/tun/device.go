package tun

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
)

// clone is the file that TUN devices are made by.
const clone = "/dev/net/tun"

// virtioLen is the length of struct virtio_net_hdr in bytes.
const virtioLen = 10

// queueLen is the number of frames that wait to be read, instead of the kernel's 500: 20 ms of
// small packets at 100,000 per second, for which another process may have the CPU.
const queueLen = 2000

// maxFrame is the longest packet of a device, super-packets included.
const maxFrame = 1<<16 - 1

// The offloads of TUNSETOFFLOAD.
const (
	tcpOffloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
	ecnOffload  = unix.TUN_F_TSO_ECN
	udpOffloads = unix.TUN_F_USO4 | unix.TUN_F_USO6
)

// Device is a TUN device. Read and Write may be called at the same time, each by one goroutine.
type Device struct {
	name string
	file *os.File
	raw  syscall.RawConn
	udp  bool // UDP super-packets are read and written
	// closed is why reads and writes fail: os.File has no error value for it here.
	closed atomic.Bool

	reader reader
	writer writer
}

// Open creates the device in the network namespace of the calling thread. It is down and has no
// addresses; the kernel removes it at Close, or when the process ends. A name with "%d" gets the
// first free number. Without TUN the error is a *feature.Error.
func Open(name string, mtu int) (*Device, error) {
	d, err := open(name)
	if err != nil {
		return nil, fmt.Errorf("create TUN device %q: %w", name, err)
	}
	err = d.SetMTU(mtu)
	if err == nil {
		if err = set32(d.name, unix.SIOCSIFTXQLEN, queueLen); err != nil {
			err = fmt.Errorf("set queue length of %q: %w", d.name, err)
		}
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func open(name string) (*Device, error) {
	fd, err := unix.Open(clone, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, openError(err)
	}
	d, err := set(fd, name)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	// Only now: the poller must see the file after it is a device.
	d.file = os.NewFile(uintptr(fd), clone)
	if d.raw, err = d.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, d.file.Close())
	}
	d.reader.init(d)
	d.writer.init(d)
	return d, nil
}

// openError returns the error of opening the clone device. No capability of the daemon's is checked
// there: EACCES is of the file's mode, EPERM of a device cgroup.
func openError(err error) error {
	e := &feature.Error{Feature: "TUN device", Reason: "cannot open " + clone, Err: err}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV):
		e.Reason, e.Remedy = "", "modprobe tun, or use a kernel with CONFIG_TUN"
	case errors.Is(err, unix.EACCES):
		e.Remedy = "chmod 0666 " + clone
	case errors.Is(err, unix.EPERM):
		e.Remedy = "allow the device, with DeviceAllow=" + clone + " rw in a unit or --device " + clone + " for a container"
	}
	return e
}

// set makes the file a device.
func set(fd int, name string) (*Device, error) {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		if errors.Is(err, unix.EPERM) {
			return nil, &feature.Error{Feature: "TUN device", Err: err, Remedy: "run as root or with CAP_NET_ADMIN"}
		}
		return nil, err
	}
	d := &Device{name: ifr.Name()}
	// UDP offloads are of Linux 6.2.
	d.udp = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tcpOffloads|ecnOffload|udpOffloads) == nil
	if !d.udp {
		if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tcpOffloads|ecnOffload); err != nil {
			return nil, &feature.Error{Feature: "segmentation offload of TUN devices", Err: err, Remedy: "use Linux 2.6.27 or newer"}
		}
	}
	return d, nil
}

// Probe reports what is missing to use TUN devices, as a *feature.Error, and whether they take UDP
// super-packets. It makes a device and removes it.
func Probe() (udp bool, err error) {
	d, err := open("tabane%d")
	if err != nil {
		return false, err
	}
	return d.udp, d.Close()
}

// SetMTU sets the MTU. It is called in the network namespace of the device.
func (d *Device) SetMTU(mtu int) error {
	if err := set32(d.name, unix.SIOCSIFMTU, uint32(mtu)); err != nil {
		return fmt.Errorf("set MTU of %q to %d: %w", d.name, mtu, err)
	}
	return nil
}

// set32 has an ioctl change a number of an interface.
func set32(name string, request uint, value uint32) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint32(value)
	return unix.IoctlIfreq(fd, request, ifr)
}

// Name returns the name of the device.
func (d *Device) Name() string { return d.name }

// UDP reports whether UDP super-packets are read and written.
func (d *Device) UDP() bool { return d.udp }

// Close removes the device. A Read that waits returns fs.ErrClosed.
func (d *Device) Close() error {
	d.closed.Store(true)
	return d.file.Close()
}
