// Package outcome reports what TCP connections achieved: each once, when it is closed, and when it
// begins to carry much or its path seems to fail, even before it is established, with eBPF programs
// at a control group and a tracepoint. What objects took is reported of connections that go on.
// Flows of UDP are reported while their senders get no acknowledgments. Nothing is polled.
//
// It decides nothing. The programs are in bpf/epe/outcome.
package outcome

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/clock"
)

// Kind is why a connection is reported.
type Kind uint8

// The kinds, as in the program.
const (
	// Closed: the connection has ended.
	Closed Kind = iota
	// Bulk: it has carried Options.Bulk. It is reported so once.
	Bulk
	// Timeout: its retransmission timer has expired.
	Timeout
	// Unanswered: it is not established, because the SYN-ACK of this host was not acknowledged, and
	// that is sent again. Only its ends and Retries are known.
	Unanswered
	// Unacknowledged: the sender of a flow of UDP, such as QUIC, gets no acknowledgments, as its
	// pauses say. Only its ends and Retries are known.
	Unacknowledged
	// Object: a connection that goes on sends something again after all was acknowledged. The report
	// is of what it sent before, since it last was so, and Duration since that began. Not all objects
	// are reported.
	Object
	// Unfit: a flow of UDP that is like QUIC, whose handshake was not seen, sends packets that would
	// not fit with the header that has a SID. It is reported so each 2 s. Only its ends are known.
	Unfit
	kinds
)

func (k Kind) String() string {
	if k < kinds {
		return [...]string{"closed", "bulk", "timeout", "unanswered", "unacknowledged", "object", "unfit"}[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Report is what a connection achieved until now. A subflow of MPTCP is a connection of its own.
type Report struct {
	Kind          Kind
	Local, Remote netip.AddrPort
	// Acked is the number of bytes that the other end acknowledged.
	Acked uint64
	// Carried is the number of bytes acknowledged since the last report of an object: others may
	// have followed that were not reported.
	Carried uint64
	// Duration is since the connection was established, Busy the part with data to send, of which
	// Window was limited by the other end's receive window and Buffer by the send buffer, in steps
	// of a jiffy.
	Duration, Busy, Window, Buffer time.Duration
	// RTT is the smoothed and MinRTT the least round-trip time, 0 if it is not known.
	RTT, MinRTT time.Duration
	// Sent and Retransmitted count segments with data; they wrap around.
	Sent, Retransmitted uint32
	// Retries is how often in a row the timer had expired before.
	Retries uint32
	// Objects: some of what the connection carried was reported as Object.
	Objects bool
}

// Goodput is what the connection carried while it had data to send, in bytes/s; 0 if it is not
// known, because that was shorter than a jiffy.
func (r Report) Goodput() float64 {
	if r.Busy <= 0 {
		return 0
	}
	return float64(r.Acked) / r.Busy.Seconds()
}

// Options are those of a Watcher.
type Options struct {
	// Bulk is the number of bytes from which a connection is reported as bulk.
	Bulk uint32
	// Groups is the root of control groups, which bpf.Groups opened; nil has New open it.
	Groups *os.File
	// Links are the interfaces that flows of UDP are reported of when they leave through them.
	Links []string
	// Fits is as of SetFits.
	Fits int
}

// Watcher receives the reports of one network namespace.
type Watcher struct {
	objects programObjects
	links   []link.Link
	// unwatched is why flows of UDP are not reported on all links.
	unwatched error
	reader    *ringbuf.Reader
	record    ringbuf.Record
	lost      uint64

	mu    sync.Mutex
	group *os.File
	// callbacks is the program at the control group; nil if it could not be attached again.
	callbacks link.Link
	// filters are those of flows of UDP, by interface; nil if one could not be attached.
	filters map[string]bpf.Attachment
	closed  bool
}

// together is for how long reports of closed connections may wait for others.
const together = time.Second

// New starts reporting the connections in the network namespace of the calling thread that are
// established from now on. The caller calls Close. New returns a *feature.Error when this host
// cannot run the program.
func New(o Options) (_ *Watcher, err error) {
	w := &Watcher{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("report connections: %w", err), w.Close())
		}
	}()
	if o.Groups == nil {
		w.group, err = bpf.Groups()
	} else {
		w.group, err = os.Open(bpf.GroupPath(o.Groups))
	}
	if err != nil {
		return nil, err
	}
	spec, err := loadProgram()
	if err != nil {
		return nil, err
	}
	cookie, err := namespace()
	if err != nil {
		return nil, fmt.Errorf("identify network namespace: %w", err)
	}
	size, err := tableBits()
	if err != nil {
		return nil, err
	}
	spec.Maps[programMapConnections].MaxEntries = 1 << size
	if err := errors.Join(
		spec.Variables[programVarNetns].Set(cookie), spec.Variables[programVarBulk].Set(o.Bulk), spec.Variables[programVarTableBits].Set(size),
	); err != nil {
		return nil, err
	}
	if err := bpf.Load(spec, &w.objects); err != nil {
		return nil, err
	}
	if w.reader, err = ringbuf.NewReader(w.objects.Reports); err != nil {
		return nil, fmt.Errorf("read reports: %w", err)
	}
	if err := w.attach(); err != nil {
		return nil, err
	}
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: synackPoint, Program: w.objects.Unanswered})
	if err != nil {
		return nil, fmt.Errorf("attach to tracepoint %q: %w", synackPoint, err)
	}
	w.links = append(w.links, l)
	if l, err = link.AttachTracing(link.TracingOptions{Program: w.objects.Closed}); err != nil {
		return nil, fmt.Errorf("attach to tracepoint of closed sockets: %w", err)
	}
	w.links = append(w.links, l)
	if err := w.SetFits(o.Fits); err != nil {
		return nil, err
	}
	w.unwatched = w.watchDatagrams(o.Links)
	return w, nil
}

// SetFits sets the bytes of an IP packet that fits on all paths, with the header that has a SID. Those
// of QUIC that are longer and have none are dropped, in connections that began since, so that
// servers do not find an MTU that only the best path has (RFC 9000, section 14.3). 0: any fits.
func (w *Watcher) SetFits(bytes int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	if err := w.objects.Fits.Set(uint32(bytes)); err != nil {
		return fmt.Errorf("set the length of packets that fit: %w", err)
	}
	return nil
}

// filter is the name of the filters at egress.
const filter = "tabane_outcome"

// watchDatagrams reports the flows of UDP that leave through links.
func (w *Watcher) watchDatagrams(links []string) error {
	// A killed process has left its own, where tcx is missing.
	if err := bpf.SweepFilters([]string{filter}, nil); err != nil {
		return err
	}
	w.filters = map[string]bpf.Attachment{}
	var errs []error
	for _, name := range links {
		err := w.watchLink(name)
		if errors.Is(err, errors.ErrUnsupported) {
			delete(w.filters, name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (w *Watcher) watchLink(name string) error {
	w.filters[name] = nil
	a, err := bpf.Attach(bpf.AttachOptions{Link: name, Ethernet: bpf.Programs{Egress: w.objects.Sent}, Raw: bpf.Programs{Egress: w.objects.SentRaw}, Name: filter})
	if err != nil {
		return fmt.Errorf("report flows of UDP on %q: %w", name, err)
	}
	w.filters[name] = a
	return nil
}

// Unread returns the interfaces on which flows of UDP are not read any more, although they are there:
// they have been made again, or another program has removed the filter. It is called in the network
// namespace of the Watcher, as is Read, and is safe for concurrent use with all other methods.
func (w *Watcher) Unread() (links []string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unread()
}

func (w *Watcher) unread() (links []string, err error) {
	if w.closed {
		return nil, nil
	}
	for _, name := range slices.Sorted(maps.Keys(w.filters)) {
		if _, err := net.InterfaceByName(name); err != nil {
			continue
		}
		place := bpf.Detached
		if a := w.filters[name]; a != nil {
			if place, err = bpf.PlaceOf(a); err != nil {
				return nil, fmt.Errorf("read flows of UDP on %q: %w", name, err)
			}
		}
		if place == bpf.Detached {
			links = append(links, name)
		}
	}
	return links, nil
}

// Read has flows of UDP read on the interfaces that Unread returns.
func (w *Watcher) Read() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	links, err := w.unread()
	for _, name := range links {
		if a := w.filters[name]; a != nil {
			w.filters[name] = nil
			err = errors.Join(err, a.Detach())
		}
		err = errors.Join(err, w.watchLink(name))
	}
	return err
}

// Unwatched returns why flows of UDP are not reported on all links, as where the type of an interface
// is not supported; nil: they are.
func (w *Watcher) Unwatched() error { return w.unwatched }

// Flow is a flow of UDP.
type Flow struct {
	Local, Remote netip.AddrPort
	// Progress changes while the sender gets acknowledgments. Waits: it gets none.
	Progress uint32
	Waits    bool
}

// Flows calls each with all flows of UDP that were reported or have sent something of late.
func (w *Watcher) Flows(each func(Flow)) error {
	var k programFlowKey
	var f programFlow
	now := uint32(clock.Monotonic() / time.Microsecond)
	all := w.objects.Flows.Iterate()
	for all.Next(&k, &f) {
		each(Flow{
			Local:    netip.AddrPortFrom(netip.AddrFrom16(k.Source).Unmap(), k.SourcePort),
			Remote:   netip.AddrPortFrom(netip.AddrFrom16(k.Destination).Unmap(), k.DestinationPort),
			Progress: f.Progress,
			// The next probe is due after twice the last pause.
			Waits: f.Backoff.Times >= unacknowledgedTimes && now-f.Backoff.Last < 3*f.Backoff.Gap,
		})
	}
	if err := all.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) { // which many new flows cause
		return fmt.Errorf("read flows of UDP: %w", err)
	}
	return nil
}

// unacknowledgedTimes is BACKOFF_TIMES of bpf/lib/backoff.h.
const unacknowledgedTimes = 2

// attach attaches the program of callbacks to the control group.
func (w *Watcher) attach() (err error) {
	w.callbacks, err = link.AttachCgroup(link.CgroupOptions{Path: bpf.GroupPath(w.group), Attach: ebpf.AttachCGroupSockOps, Program: w.objects.Observe})
	if err == nil {
		return nil
	}
	w.callbacks = nil
	if list, failed := link.QueryPrograms(link.QueryOptions{Target: int(w.group.Fd()), Attach: ebpf.AttachCGroupSockOps}); errors.Is(err, unix.EPERM) && failed == nil && len(list.Programs) > 0 {
		return &feature.Error{
			Feature: "eBPF", Reason: fmt.Sprintf("the sock_ops program %d at the root of control groups excludes others", list.Programs[0].ID),
			Remedy: "attach that program with BPF_F_ALLOW_MULTI (bpftool cgroup attach ... multi), and restart edge", Err: err,
		}
	}
	return fmt.Errorf("attach to the root of control groups: %w", err)
}

// Detached reports whether another program has detached what reports connections. It is safe for
// concurrent use with all other methods, as are Attach and Silenced.
func (w *Watcher) Detached() (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false, nil
	}
	if w.callbacks == nil {
		return true, nil
	}
	info, err := w.callbacks.Info()
	if errors.Is(err, ebpf.ErrNotSupported) {
		return false, nil // no link, which another program could detach
	}
	if err != nil {
		return false, fmt.Errorf("read link to the root of control groups: %w", err)
	}
	group := info.Cgroup()
	return group != nil && group.CgroupId == 0, nil
}

// Attach reports connections again that are established from now on, after another program has
// detached what does.
func (w *Watcher) Attach() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	if w.callbacks != nil {
		if err := w.callbacks.Close(); err != nil {
			return err
		}
	}
	return w.attach()
}

// Silenced returns the number of connections that have ended, and of which only that was reported,
// because another program has switched off the callbacks of their sockets.
func (w *Watcher) Silenced() (n uint64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, nil
	}
	if err := w.objects.Silenced.Get(&n); err != nil {
		return 0, fmt.Errorf("read number of silenced connections: %w", err)
	}
	return n, nil
}

// synackPoint is the tracepoint of SYN-ACKs that are sent again (Linux 4.15).
const synackPoint = "tcp_retransmit_synack"

// namespace returns the cookie of the network namespace of the calling thread.
func namespace() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}

// Receive waits for reports and returns those that are there, at most 4,096, and how many were lost
// since the last call because the buffer was full. Reports of closed connections alone may be a
// second old. The error matches os.ErrClosed after Close.
func (w *Watcher) Receive() (reports []Report, lost uint64, err error) {
	// At the deadline, those are read that nothing was signaled for.
	w.reader.SetDeadline(time.Now().Add(together))
	for {
		err := w.reader.ReadInto(&w.record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if len(reports) > 0 {
				break
			}
			w.reader.SetDeadline(time.Now().Add(together))
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("read reports of connections: %w", err)
		}
		r, err := decode(w.record.RawSample)
		if err != nil {
			return nil, 0, fmt.Errorf("read reports of connections: %w", err)
		}
		reports = append(reports, r)
		if w.record.Remaining == 0 || len(reports) == 4096 {
			break
		}
	}
	var total uint64
	if err := w.objects.Lost.Get(&total); err != nil {
		return nil, 0, fmt.Errorf("read number of lost reports: %w", err)
	}
	lost, w.lost = total-w.lost, total
	return reports, lost, nil
}

func decode(b []byte) (Report, error) {
	if len(b) < int(unsafe.Sizeof(programReport{})) {
		return Report{}, fmt.Errorf("report of %d bytes, want %d", len(b), unsafe.Sizeof(programReport{}))
	}
	r := (*programReport)(unsafe.Pointer(unsafe.SliceData(b)))
	end := func(a [16]byte, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16(a).Unmap(), port)
	}
	us := func(n uint64) time.Duration { return time.Duration(min(n, 1<<53)) * time.Microsecond }
	rtt := func(n uint32) time.Duration {
		if n == ^uint32(0) {
			return 0
		}
		return us(uint64(n))
	}
	if r.Kind >= uint32(kinds) {
		return Report{}, fmt.Errorf("report of kind %d", r.Kind)
	}
	return Report{
		Kind: Kind(r.Kind), Local: end(r.Local, r.LocalPort), Remote: end(r.Remote, r.RemotePort), Acked: r.Acked, Carried: r.Carried,
		Duration: us(r.DurationUs), Busy: us(r.BusyUs), Window: us(r.WindowUs), Buffer: us(r.BufferUs),
		RTT: rtt(r.SrttUs), MinRTT: rtt(r.MinRttUs), Sent: r.Sent, Retransmitted: r.Retransmitted, Retries: r.Retries,
		Objects: r.Objects != 0,
	}, nil
}

// Close stops reporting.
func (w *Watcher) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	var errs []error
	if w.callbacks != nil {
		errs = append(errs, w.callbacks.Close())
	}
	for _, l := range w.links {
		errs = append(errs, l.Close())
	}
	for _, f := range w.filters {
		if f != nil {
			errs = append(errs, f.Detach())
		}
	}
	if w.group != nil {
		errs = append(errs, w.group.Close())
	}
	if w.reader != nil {
		errs = append(errs, w.reader.Close())
	}
	return errors.Join(append(errs, w.objects.Close())...)
}
