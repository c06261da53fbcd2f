package cli

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
)

func TestConnectRemedy(t *testing.T) {
	dial := func(errno syscall.Errno) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errno)}
	}
	const refused = "start the server"
	for _, tt := range []struct {
		err  error
		want string
	}{
		{dial(syscall.ECONNREFUSED), refused},
		{dial(syscall.ENETUNREACH), "check the routes to it"},
		{dial(syscall.ETIMEDOUT), "check the address, the server, and the filters on the way"},
		{&net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "a.invalid"}}, "check the name and the resolver"},
		{&net.DNSError{Name: "a.invalid", UnwrapErr: dial(syscall.ENETUNREACH)}, "check the name and the resolver"},
		{syscall.EPIPE, ""},
	} {
		if got := ConnectRemedy(fmt.Errorf("fetch: %w", tt.err), refused); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}
