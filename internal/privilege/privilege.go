// Package privilege reads and drops the capabilities of this process (capabilities(7)).
//
// It grants none, and is independent of daemons.
package privilege

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Capability is one of capabilities(7).
type Capability struct {
	bit  uint
	name string
}

// The capabilities that tabane needs.
var (
	NetAdmin = Capability{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}
	SysAdmin = Capability{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}
	BindPort = Capability{unix.CAP_NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE"}
	BPF      = Capability{unix.CAP_BPF, "CAP_BPF"}
)

func (c Capability) String() string { return c.name }

// Lacking returns those of the wanted capabilities that are not effective in this process.
func Lacking(want ...Capability) ([]Capability, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil, fmt.Errorf("read capabilities: %w", err)
	}
	var lacking []Capability
	for _, c := range want {
		if data[c.bit/32].Effective&(1<<(c.bit%32)) == 0 {
			lacking = append(lacking, c)
		}
	}
	return lacking, nil
}

// KeepNetAdmin drops all capabilities of all threads but CAP_NET_ADMIN and, where programs is set,
// CAP_BPF, for eBPF programs that are loaded already. A program with cgo has threads
// that Go does not know: the error then wraps syscall.ENOTSUP, and nothing has changed.
func KeepNetAdmin(programs bool) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	data[0].Effective = 1 << unix.CAP_NET_ADMIN
	if programs {
		data[unix.CAP_BPF/32].Effective |= 1 << (unix.CAP_BPF % 32)
	}
	for i := range data {
		data[i].Permitted = data[i].Effective
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return fmt.Errorf("drop capabilities: %w", errno)
	}
	return nil
}
