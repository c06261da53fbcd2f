package tun

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpenError: the remedy is that of the cause.
func TestOpenError(t *testing.T) {
	for err, want := range map[unix.Errno]string{
		unix.ENOENT: "; modprobe tun", unix.ENODEV: "; modprobe tun", unix.EACCES: "; chmod 0666 /dev/net/tun",
		unix.EPERM: "; allow the device", unix.EMFILE: "too many open files",
	} {
		if got := openError(err).Error(); !strings.Contains(got, want) || strings.Contains(got, "CAP_NET_ADMIN") {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}
