package netns

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Lock takes a name, which begins with @, in the network namespace of the calling thread. Others do
// not get it until the listener is closed or the process ends: abstract socket names belong to the
// namespace (unix(7)). It returns taken if another one has the name.
func Lock(name string, taken error) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: name})
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, taken
	case err != nil:
		return nil, fmt.Errorf("lock network namespace: %w", err)
	}
	return l, nil
}
