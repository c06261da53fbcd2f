package cli

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/tabane/tabane/internal/kernel/handover"
	"github.com/tabane/tabane/internal/role"
)

// replaceable is a machine whose listening sockets another process can take over while it runs.
type replaceable interface {
	// Sockets returns the listening sockets.
	Sockets() ([]int, error)
	// Replaced has the machine stop accepting; Run returns once its connections have ended.
	Replaced()
	// Draining is closed by Replaced.
	Draining() <-chan struct{}
}

// wasReplaced reports whether another process has taken over.
func wasReplaced(m role.Machine) bool {
	r, ok := m.(replaceable)
	if !ok {
		return false
	}
	select {
	case <-r.Draining():
		return true
	default:
		return false
	}
}

// followReplace has a new process replace this one at SIGUSR2, until ctx ends or one has.
func (s *service) followReplace(ctx context.Context, m replaceable) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR2)
	defer signal.Stop(signals)
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		pid, err := s.replace(ctx, m)
		if err != nil {
			s.log.Error("not replaced, this process goes on", "err", err)
			continue
		}
		s.log.Info("replaced by another process", "pid", pid)
		s.notify(s.manager.MainPID(pid))
		return
	}
}

// replace starts a process that takes over the sockets, and returns its process ID.
func (s *service) replace(ctx context.Context, m replaceable) (pid int, err error) {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	sockets, err := m.Sockets()
	if err != nil {
		return 0, err
	}
	for _, l := range []net.Listener{s.status, s.control} {
		if l, ok := l.(syscall.Conn); ok {
			fd, err := handover.Descriptor(l)
			if err != nil {
				return 0, fmt.Errorf("hand over sockets: %w", err)
			}
			sockets = append(sockets, fd)
		}
	}
	if pid, err = handover.Replace(ctx, sockets, s.manager.Environment()...); err != nil {
		return 0, err
	}
	if u, ok := s.control.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // it is the other process's
	}
	m.Replaced()
	return pid, nil
}
