package openbpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/clock"
)

// MaxSessions bounds the NAT sessions of both directions together.
const MaxSessions = sessionSlots / 2

// This is the number of this gateway where others are those of peers that send a flow.
const This = -1

func sessionKey(peer int, f *tunnel.Flow) programSessionKey {
	destination, _ := mapped(f.Destination.Addr())
	return programSessionKey{
		Destination: destination, SourcePort: f.Source.Port(), DestinationPort: f.Destination.Port(),
		Protocol: f.Protocol, Family: family(f.Destination.Addr()), Peer: uint16(peer + 1),
	}
}

// flow is the inverse of sessionKey.
func (k *programSessionKey) flow(source [16]byte) tunnel.Flow {
	from, to := netip.AddrFrom16(source), netip.AddrFrom16(k.Destination)
	if k.Family == unix.AF_INET {
		from, to = from.Unmap(), to.Unmap()
	}
	return tunnel.Flow{Protocol: k.Protocol, Source: netip.AddrPortFrom(from, k.SourcePort), Destination: netip.AddrPortFrom(to, k.DestinationPort)}
}

// Restore has the program restore the sources of packets of NAT sessions that an interface
// receives, and is otherwise as Join.
func (p *Program) Restore(link string) (bpf.Attachment, error) {
	return p.attach(link, "restore", "NAT", bpf.AttachOptions{
		Name: nameRestore, Ethernet: bpf.Programs{Ingress: p.objects.Restore}, Raw: bpf.Programs{Ingress: p.raw.Restore},
	})
}

// SetSession sets the session of a flow that a peer or This sends. Packets have it while it is
// open.
func (p *Program) SetSession(peer int, f tunnel.Flow, open bool) error {
	now := clock.Monotonic()
	source, _ := mapped(f.Source.Addr())
	state := programSessionStateSESSION_CLOSED
	if open {
		state = programSessionStateSESSION_OPEN
	}
	if err := p.table.set(sessionKey(peer, &f), source, state, now); err != nil {
		return fmt.Errorf("set NAT session: %w", err)
	}
	return nil
}

// DeleteSession deletes a session, if there is one.
func (p *Program) DeleteSession(peer int, f tunnel.Flow) error {
	if err := p.table.delete(sessionKey(peer, &f)); err != nil {
		return fmt.Errorf("delete NAT session: %w", err)
	}
	return nil
}

// Session is one that the program has.
type Session struct {
	Flow tunnel.Flow
	Peer int // that sends the flow, or This
	Open bool
	// Idle is how long ago its last packet was, to a second.
	Idle time.Duration
}

// Sessions calls a function with each session. Sessions may change meanwhile, also by the function.
func (p *Program) Sessions(do func(Session)) {
	now := clock.Monotonic()
	p.table.each(func(batch []programSession) {
		for i := range batch {
			s := &batch[i]
			do(Session{
				Flow: s.Key.flow(s.Source), Peer: int(s.Key.Peer) - 1,
				Open: s.State == uint32(programSessionStateSESSION_OPEN), Idle: max(0, now-time.Duration(s.Used)),
			})
		}
	})
}

// Origin is where packets of NAT sessions come from.
type Origin struct {
	Peer int
	// Path is the number of the path, MaxPaths if several have the address.
	Path int
}

const originPath = 16 // bits before the path in a value of the map

func (o Origin) value() uint32 { return uint32(o.Path)<<originPath | uint32(o.Peer) }

func originOf(v uint32) Origin { return Origin{int(v & (1<<originPath - 1)), int(v >> originPath)} }

// SetOrigins replaces the addresses that packets of peers' flows come from, but for those of peers
// that are kept.
func (p *Program) SetOrigins(origins map[netip.Addr]Origin, keep func(peer int) bool) error {
	old := map[netip.Addr]bool{}
	var key programOrigin
	var value uint32
	all := p.objects.Origins.Iterate()
	for all.Next(&key, &value) {
		a := netip.AddrFrom16(key.Address)
		if key.Family == unix.AF_INET {
			a = a.Unmap()
		}
		if o, ok := origins[a]; ok || !keep(originOf(value).Peer) {
			old[a] = ok && o == originOf(value)
		}
	}
	errs := []error{all.Err()}
	changed := false
	for a, o := range origins {
		if !old[a] {
			changed = true
			address, _ := mapped(a)
			errs = append(errs, p.objects.Origins.Put(&programOrigin{Address: address, Family: uint32(family(a))}, o.value()))
		}
	}
	for a := range old {
		if _, ok := origins[a]; !ok {
			changed = true
			address, _ := mapped(a)
			errs = append(errs, p.objects.Origins.Delete(&programOrigin{Address: address, Family: uint32(family(a))}))
		}
	}
	if changed {
		errs = append(errs, p.forgetOwners())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("set origins of NAT: %w", err)
	}
	return nil
}

// Wants are packets to peers that have no session.
type Wants struct {
	reader *ringbuf.Reader
	record ringbuf.Record
}

// Wants returns a reader of packets without a session. The caller closes it.
func (p *Program) Wants() (*Wants, error) {
	r, err := ringbuf.NewReader(p.objects.Wants)
	if err != nil {
		return nil, fmt.Errorf("read flows without NAT session: %w", err)
	}
	return &Wants{reader: r}, nil
}

// Next waits for a packet and returns its flow and the peer that it is for. After Close the error
// is os.ErrClosed. It is for one goroutine.
func (w *Wants) Next() (peer int, f tunnel.Flow, err error) {
	if err := w.reader.ReadInto(&w.record); err != nil {
		return 0, f, err
	}
	var e programWanted
	if _, err := binary.Decode(w.record.RawSample, binary.NativeEndian, &e); err != nil {
		return 0, f, fmt.Errorf("read flow without NAT session: %w", err)
	}
	return int(e.Peer), e.Key.flow(e.Source), nil
}

// Close ends Next.
func (w *Wants) Close() error { return w.reader.Close() }
