// Package silence reports the subflows of MPTCP connections that have data in flight without
// progress, with an eBPF program, so that connections that are idle or progress are not read at
// all.
//
// It does not decide whether the path of a subflow failed: the subflow may just as well have lost a
// few segments. The program is in bpf/epe/silence.
package silence

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/feature"
	"github.com/tabane/tabane/internal/kernel/bpf"
)

// Options are the times without progress after which a subflow counts as stalled. It is reported
// after a round trip if a timer of the kernel retransmits its data, and otherwise, when the
// connection sends, after two fifths of the larger of these times and 3 RTT + 4 RTTVAR.
type Options struct {
	// Least is the shortest time, LeastShort that with fewer than ShortFlight segments in flight.
	Least, LeastShort time.Duration
	ShortFlight       int
}

// Report is a subflow without progress.
type Report struct {
	// Token is that of the connection on this host (RFC 8684 section 3.2).
	Token         uint32
	Local, Remote netip.AddrPort
	// Silence is the time since the last acknowledgment of new data, SACK included, or since the
	// first segment in flight was sent.
	Silence time.Duration
}

// Watcher receives the reports of one network namespace.
type Watcher struct {
	objects programObjects
	links   []link.Link
	reader  *ringbuf.Reader
	record  ringbuf.Record
	lost    uint64
}

// tracepoints are those that the programs are attached to.
const (
	retransmitPoint = "tcp_retransmit_skb"
	schedulePoint   = "mptcp_subflow_get_send"
)

// New starts reporting the subflows in the network namespace of the calling thread. A subflow is
// reported again at most every 20 ms. The caller calls Close. New returns a *feature.Error when
// this host cannot run the programs.
func New(o Options) (_ *Watcher, err error) {
	w := &Watcher{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("report stalled subflows: %w", err), w.Close())
		}
	}()
	spec, err := loadProgram()
	if err != nil {
		return nil, err
	}
	var namespace unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &namespace); err != nil {
		return nil, fmt.Errorf("identify network namespace: %w", err)
	}
	for name, value := range map[string]uint32{
		programVarNetns: uint32(namespace.Ino), programVarLeast: uint32(o.Least.Microseconds()),
		programVarLeastShort: uint32(o.LeastShort.Microseconds()), programVarShortFlight: uint32(o.ShortFlight),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	if err := bpf.Load(spec, &w.objects); err != nil {
		return nil, err
	}
	if w.reader, err = ringbuf.NewReader(w.objects.Reports); err != nil {
		return nil, fmt.Errorf("read reports: %w", err)
	}
	for _, at := range []struct {
		point   string
		program *ebpf.Program
	}{{retransmitPoint, w.objects.Retransmitted}, {schedulePoint, w.objects.Scheduled}} {
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: at.point, Program: at.program})
		if errors.Is(err, os.ErrNotExist) {
			return nil, &feature.Error{Feature: "eBPF", Reason: "this kernel has no tracepoint " + at.point, Remedy: "use Linux 5.13 or newer with CONFIG_TRACEPOINTS=y"}
		}
		if err != nil {
			return nil, fmt.Errorf("attach to tracepoint %q: %w", at.point, err)
		}
		w.links = append(w.links, l)
	}
	return w, nil
}

// Receive waits for reports and returns those that are there, at most 1,024, and how many were lost
// since the last call because the buffer was full. The error matches os.ErrClosed after Close.
func (w *Watcher) Receive() (reports []Report, lost uint64, err error) {
	for {
		if err := w.reader.ReadInto(&w.record); err != nil {
			return nil, 0, fmt.Errorf("read reports of subflows: %w", err)
		}
		r, err := decode(w.record.RawSample)
		if err != nil {
			return nil, 0, fmt.Errorf("read reports of subflows: %w", err)
		}
		reports = append(reports, r)
		if w.record.Remaining == 0 || len(reports) == 1024 {
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
	return Report{
		Token: r.Token, Local: end(r.Local, r.LocalPort), Remote: end(r.Remote, r.RemotePort),
		Silence: time.Duration(r.SilenceUs) * time.Microsecond,
	}, nil
}

// Close stops reporting.
func (w *Watcher) Close() error {
	var errs []error
	for _, l := range w.links {
		errs = append(errs, l.Close())
	}
	if w.reader != nil {
		errs = append(errs, w.reader.Close())
	}
	return errors.Join(append(errs, w.objects.Close())...)
}
