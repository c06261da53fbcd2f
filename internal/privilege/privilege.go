// Package privilege drops the capabilities of this process (capabilities(7)).
//
// It grants none, and knows no daemon.
package privilege

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// KeepNetAdmin drops all capabilities of all threads but CAP_NET_ADMIN. A program with cgo has threads
// that Go does not know: the error then wraps syscall.ENOTSUP, and nothing has changed.
func KeepNetAdmin() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	data[0].Effective, data[0].Permitted = 1<<unix.CAP_NET_ADMIN, 1<<unix.CAP_NET_ADMIN
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return fmt.Errorf("drop capabilities: %w", errno)
	}
	return nil
}
