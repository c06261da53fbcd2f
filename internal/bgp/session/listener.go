package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/contain"
)

// Listener accepts the connections of neighbors and passes them to their sessions. Connections from
// other addresses are reset at once. It has one goroutine per address, and is safe for concurrent
// use.
type Listener struct {
	log     *slog.Logger
	sockets []*net.TCPListener
	wg      sync.WaitGroup

	mu       sync.Mutex
	sessions map[netip.Addr]*Session // by remote address
	groups   []group
	rejected uint64    // connections
	logged   time.Time // when a rejected one was last logged
}

// group is a range of addresses from which any router is a neighbor.
type group struct {
	prefix   netip.Prefix
	password string
	create   func(local, remote netip.Addr) *Session
}

// Listen opens a listening socket on each address; a link-local address has a zone. If an address
// and port is in use, the error wraps syscall.EADDRINUSE, and everything opened is closed. It
// accepts connections until Close.
func Listen(log *slog.Logger, port uint16, addresses ...netip.Addr) (*Listener, error) {
	l := &Listener{log: log, sessions: map[netip.Addr]*Session{}}
	for _, a := range addresses {
		s, err := listen(netip.AddrPortFrom(a, port))
		if errors.Is(err, unix.EAFNOSUPPORT) && a.IsUnspecified() && len(addresses) > 1 {
			continue // the kernel runs without IPv6
		}
		if err != nil {
			l.Close()
			return nil, err
		}
		l.sockets = append(l.sockets, s)
	}
	for _, s := range l.sockets {
		l.wg.Go(func() { l.accept(s) })
	}
	return l, nil
}

func listen(a netip.AddrPort) (*net.TCPListener, error) {
	v4 := a.Addr().Is4()
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return control(raw, func(fd int) error {
			return errors.Join(
				class.set(fd, v4, trafficClass),
				// SYN-ACKs are sent with the hop limit of the listening socket, and a
				// neighbor with GTSM accepts no other one. They carry no data, and admit
				// sets the hop limit of an accepted connection.
				hopLimit.set(fd, v4, maxHops),
				unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, 1),
			)
		})
	}}
	config.SetMultipathTCP(false) // excludes MD5
	network := "tcp6"             // which excludes IPv4
	if v4 {
		network = "tcp4"
	}
	s, err := config.Listen(context.Background(), network, a.String())
	if err != nil {
		return nil, err
	}
	return s.(*net.TCPListener), nil
}

// Close closes the sockets. The sessions remain.
func (l *Listener) Close() {
	for _, s := range l.sockets {
		_ = s.Close() // ends accept
	}
	l.wg.Wait()
}

// AddGroup accepts connections from any address in a prefix, unless a session has that address:
// create returns a started session for it, or nil to reject it. create is called in the goroutine
// that accepts. The password is that of all these neighbors; a session in the prefix without
// password is then not possible.
func (l *Listener) AddGroup(p netip.Prefix, password string, create func(local, remote netip.Addr) *Session) error {
	p = p.Masked()
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.ContainsFunc(l.groups, func(g group) bool { return g.prefix == p }) {
		return fmt.Errorf("accept neighbors in %s: the prefix is in use", p)
	}
	if password != "" {
		if err := l.setKey(p, password); err != nil {
			return fmt.Errorf("accept neighbors in %q: %w", p, err)
		}
	}
	l.groups = append(l.groups, group{p, password, create})
	return nil
}

// RemoveGroup reverts AddGroup. Its sessions remain.
func (l *Listener) RemoveGroup(p netip.Prefix) {
	p = p.Masked()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.groups = slices.DeleteFunc(l.groups, func(g group) bool {
		if g.prefix == p && g.password != "" {
			l.deleteKey(p)
		}
		return g.prefix == p
	})
}

// add registers a session. l may be nil.
func (l *Listener) add(s *Session) error {
	if l == nil {
		return nil
	}
	remote := s.conf.Remote.Addr()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sessions[remote] != nil {
		return fmt.Errorf("%s has a session already", remote)
	}
	if s.conf.Password != "" {
		if err := l.setKey(netip.PrefixFrom(remote, remote.BitLen()), s.conf.Password); err != nil {
			return err
		}
	}
	l.sessions[remote] = s
	return nil
}

// remove reverts add.
func (l *Listener) remove(s *Session) {
	if l == nil {
		return
	}
	remote := s.conf.Remote.Addr()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sessions, remote)
	if s.conf.Password == "" {
		return
	}
	for a := range l.sessions {
		if a.WithZone("") == remote.WithZone("") {
			return // shares the key
		}
	}
	l.deleteKey(netip.PrefixFrom(remote, remote.BitLen()))
}

// setKey sets the MD5 key of the sockets for a prefix, or deletes it if the password is empty.
func (l *Listener) setKey(p netip.Prefix, password string) error {
	for _, s := range l.sockets {
		v4 := s.Addr().(*net.TCPAddr).AddrPort().Addr().Is4()
		if v4 != p.Addr().Is4() {
			continue
		}
		raw, err := s.SyscallConn()
		if err == nil {
			err = control(raw, func(fd int) error { return setKey(fd, v4, p, password) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// deleteKey deletes the key for a prefix. A socket that was closed has none.
func (l *Listener) deleteKey(p netip.Prefix) {
	if err := l.setKey(p, ""); err != nil && !errors.Is(err, net.ErrClosed) {
		l.log.Error("delete tcp md5 key", "prefix", p, "err", err)
	}
}

// acceptPause is the pause after an error of accept, in general that there are too many open files.
const acceptPause = 100 * time.Millisecond

// accept passes connections to their sessions until the socket is closed.
func (l *Listener) accept(socket *net.TCPListener) {
	for {
		c, err := socket.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			l.log.Warn("accept bgp connection", "address", socket.Addr(), "err", err)
			time.Sleep(acceptPause)
			continue
		}
		if err := contain.Do(contain.BGPConnection, l.log, nil, func() { l.assign(c) }); err != nil {
			_ = c.Close()
		}
	}
}

// assign passes a connection to the session with its remote address.
func (l *Listener) assign(c *net.TCPConn) {
	local, remote := addresses(c)
	s := l.sessionOf(local.Addr(), remote.Addr())
	if s == nil {
		l.reject(local.Addr(), remote)
		_ = c.SetLinger(0) // no TIME_WAIT for anyone who connects
		_ = c.Close()
		return
	}
	if err := s.conf.admit(c); err != nil {
		s.refused(remote, err)
		_ = c.SetLinger(0)
		_ = c.Close()
		return
	}
	s.offer(c)
}

// sessionOf returns the session with a neighbor, or nil if the address is that of no neighbor.
func (l *Listener) sessionOf(local, remote netip.Addr) *Session {
	l.mu.Lock()
	s := l.sessions[remote]
	var g *group
	if s == nil {
		for i := range l.groups {
			if p := l.groups[i].prefix; p.Contains(remote.WithZone("")) && (g == nil || p.Bits() > g.prefix.Bits()) {
				g = &l.groups[i]
			}
		}
	}
	var create func(local, remote netip.Addr) *Session
	if g != nil {
		create = g.create
	}
	l.mu.Unlock()
	if s == nil && create != nil {
		s = create(local, remote)
	}
	return s
}

// rejectedPause is the least interval at which rejected connections are logged: anybody can
// connect.
const rejectedPause = time.Minute

// reject counts a rejected connection, and logs some: the neighbor may use an address that is not
// the configured one.
func (l *Listener) reject(local netip.Addr, remote netip.AddrPort) {
	l.mu.Lock()
	l.rejected++
	count, now := l.rejected, time.Now()
	log := now.Sub(l.logged) >= rejectedPause
	if log {
		l.logged = now
	}
	l.mu.Unlock()
	if log {
		l.log.Info("bgp connection rejected", "from", remote, "to", local, "reason", "no neighbor has this address", "rejected", count)
	}
}

// admit sets the options of an accepted connection, or returns why the session does not accept it.
func (c Config) admit(conn *net.TCPConn) error {
	local, _ := addresses(conn)
	if c.Local.IsValid() && local.Addr().WithZone("") != c.Local {
		return fmt.Errorf("to local address %s, not %s", local.Addr(), c.Local)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, func(fd int) error {
		h := c.hops()
		if h.least > 0 {
			// The listening socket serves neighbors without GTSM too, so it has no limit.
			if got, err := synHops(fd); err != nil || got < h.least {
				return errors.Join(err, fmt.Errorf("with hop limit %d, but gtsm needs at least %d", got, h.least))
			}
		}
		if h.send == 0 {
			h.send = -1 // not that of the listening socket, but the kernel's default
		}
		return h.set(fd, local.Addr().Is4())
	})
}

// addresses returns both ends of a connection, IPv4 addresses not mapped.
func addresses(c net.Conn) (local, remote netip.AddrPort) {
	of := func(a net.Addr) netip.AddrPort {
		t, ok := a.(*net.TCPAddr)
		if !ok {
			return netip.AddrPort{}
		}
		p := t.AddrPort()
		return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
	}
	return of(c.LocalAddr()), of(c.RemoteAddr())
}

// offer passes an accepted connection to the session.
func (s *Session) offer(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		_ = c.Close()
		return
	}
	select {
	case s.incoming <- c:
	default: // the session has not looked at the last one yet
		_ = c.Close()
	}
}
