package measure

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/mptcp"
)

// joinEvery is how often the subflows of a connection are looked up, since clients establish them
// later.
const joinEvery = 100 * time.Millisecond

// Subflows is the Delivery of the MPTCP connections of this host: it sets which subflows are
// backups. It needs CAP_NET_ADMIN and the path manager in user space, as edge has it.
type Subflows struct {
	mu      sync.Mutex
	diag    *mptcp.Diag
	conn    *mptcp.Conn
	running map[net.Conn]*switching
}

// switching is a connection that is delivered by a name.
type switching struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// OpenSubflows opens the kernel's interfaces in the network namespace of the calling thread. Close
// them.
func OpenSubflows() (*Subflows, error) {
	diag, err := mptcp.DialDiag()
	if err != nil {
		return nil, err
	}
	conn, err := mptcp.Dial()
	if err != nil {
		return nil, errors.Join(err, diag.Close())
	}
	return &Subflows{diag: diag, conn: conn, running: map[net.Conn]*switching{}}, nil
}

// Close closes the kernel's interfaces.
func (s *Subflows) Close() error { return errors.Join(s.diag.Close(), s.conn.Close()) }

// Names implements Delivery. With the kernel's path manager there are none.
func (s *Subflows) Names() []string {
	if manager, err := mptcp.CurrentManager(); err != nil || manager != mptcp.UserManager {
		return nil
	}
	return []string{DeliverBest, DeliverAll}
}

// Deliver implements Delivery.
func (s *Subflows) Deliver(ctx context.Context, conn net.Conn, name string) error {
	best := name == DeliverBest
	if tcp, ok := conn.(*net.TCPConn); !ok {
		return errors.New("it is no TCP connection")
	} else if multipath, err := tcp.MultipathTCP(); err != nil || !multipath {
		return errors.New("it is no MPTCP connection")
	}
	ends := mptcp.Ends{Local: addrPort(conn.LocalAddr()), Remote: addrPort(conn.RemoteAddr())}
	s.stop(conn)
	token, err := s.set(ends, 0, best)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	one := &switching{cancel, make(chan struct{})}
	s.mu.Lock()
	s.running[conn] = one
	s.mu.Unlock()
	go func() {
		defer close(one.done)
		defer cancel()
		tick := time.NewTicker(joinEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.running[conn] == one {
					delete(s.running, conn)
				}
				return
			case <-tick.C:
				// An error means that the connection or the subflow is closed.
				_, _ = s.set(ends, token, best)
			}
		}
	}()
	return nil
}

// stop ends what an earlier Deliver does with a connection.
func (s *Subflows) stop(conn net.Conn) {
	s.mu.Lock()
	one := s.running[conn]
	delete(s.running, conn)
	s.mu.Unlock()
	if one != nil {
		one.cancel()
		<-one.done
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	at := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// set makes the subflows of a connection active or backups: with best, those of the connection's
// own address are active and the others backups, otherwise the reverse, if there are others. It
// returns the connection's token; 0 looks it up.
func (s *Subflows) set(ends mptcp.Ends, token uint32, best bool) (uint32, error) {
	family := mptcp.IPv6
	if ends.Local.Addr().Is4() {
		family = mptcp.IPv4
	}
	var all []mptcp.Subflow
	collect := func(one mptcp.Subflow) {
		one.Local, one.Remote = unmapped(one.Local), unmapped(one.Remote)
		if token == 0 && one.Local == ends.Local && one.Remote == ends.Remote {
			token = one.Token
		}
		all = append(all, one)
	}
	// A dual-stack socket has subflows of IPv6 with mapped addresses.
	for _, f := range []mptcp.Family{family, mptcp.IPv6} {
		if err := s.diag.Subflows(f, collect); err != nil {
			return 0, err
		}
		if token != 0 || f == mptcp.IPv6 {
			break
		}
	}
	if token == 0 {
		return 0, errors.New("the kernel does not report the connection's subflows")
	}
	others := false
	for _, one := range all {
		others = others || one.Token == token && one.Local.Addr() != ends.Local.Addr()
	}
	var errs []error
	for _, one := range all {
		if one.Token != token {
			continue
		}
		own := one.Local.Addr() == ends.Local.Addr()
		backup := own != best
		if own && !others {
			backup = false
		}
		if one.BackupHere != backup {
			errs = append(errs, s.conn.Request(mptcp.SetBackup{Token: token, Local: one.Local, Remote: one.Remote, Backup: backup}))
		}
	}
	return token, errors.Join(errs...)
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
