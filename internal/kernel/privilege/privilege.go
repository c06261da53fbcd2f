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
	// NetRaw is for raw and packet sockets: tables of iptables-legacy are read from one.
	NetRaw   = Capability{unix.CAP_NET_RAW, "CAP_NET_RAW"}
	BindPort = Capability{unix.CAP_NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE"}
	BPF      = Capability{unix.CAP_BPF, "CAP_BPF"}
	// FileAccess is that of root to files of other users.
	FileAccess = Capability{unix.CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE"}
	Perfmon    = Capability{unix.CAP_PERFMON, "CAP_PERFMON"}
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

// Keep drops all capabilities of all threads that are not in the list, and forbids this process and
// its children to gain others by executing a program (PR_SET_NO_NEW_PRIVS), also as root. A program
// with cgo has threads that Go does not know: the error then wraps syscall.ENOTSUP, and nothing has
// changed.
func Keep(list ...Capability) error {
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("set no_new_privs: %w", errno)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	var keep [2]uint32
	for _, c := range list {
		keep[c.bit/32] |= 1 << (c.bit % 32)
	}
	for i, k := range keep {
		data[i].Permitted &= k
		data[i].Effective = data[i].Permitted
		data[i].Inheritable &= k
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return fmt.Errorf("drop capabilities: %w", errno)
	}
	return nil
}
