package ccbpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/tc"
	"github.com/tabane/tabane/internal/mptcp/mptcptest"
)

// The pacing status of a socket: SK_PACING_NONE and SK_PACING_NEEDED.
const none, needed = 0, 1

// sockets returns a function that reads the pacing of a namespace's TCP sockets that have sent
// data.
func sockets(t *testing.T, namespace string) func() []pacingPacing {
	t.Helper()
	var objects struct {
		Report *ebpf.Program `ebpf:"report"`
	}
	if err := loadPacingObjects(&objects, nil); err != nil {
		t.Fatal(err)
	}
	defer objects.Report.Close()
	it, err := link.AttachIter(link.IterOptions{Program: objects.Report})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = it.Close() })
	return func() (sent []pacingPacing) {
		t.Helper()
		netnstest.Do(t, namespace, func() error {
			r, err := it.Open()
			if err != nil {
				return err
			}
			defer r.Close()
			for {
				var p pacingPacing
				switch err := binary.Read(r, binary.NativeEndian, &p); {
				case errors.Is(err, io.EOF):
					return nil
				case err != nil:
					return err
				case p.Delivered > 1: // the first is the SYN
					sent = append(sent, p)
				}
			}
		})
		return sent
	}
}

// TestPaceUnlessFast: with the bound of unsent data a subflow is paced, in slow start and after it,
// until it is fast, and then as well if its rate is limited.
func TestPaceUnlessFast(t *testing.T) {
	for name, fast := range map[string]uint32{"lia": none, Ratio: needed} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			o.Pace, o.Lowat, o.Rates = false, true, nil
			if name == Ratio {
				o.Rates = []unit.Bandwidth{100 * unit.MbitPerSecond}
			}
			p := mptcptest.New(t, netnstest.New(t), netnstest.New(t), 1)
			use(t, name, o, p.Server)
			netnstest.Do(t, p.Server, func() error {
				return tc.SetRate(mptcptest.Link(0), tc.Rate{Rate: 5 * unit.MbitPerSecond, Queue: 400 * time.Millisecond})
			})
			read := sockets(t, p.Server)
			wait := func(what string, reached func(s pacingPacing) bool) (found pacingPacing) {
				t.Helper()
				for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
					all := read()
					if len(all) == 1 && reached(all[0]) {
						return all[0]
					}
					if time.Now().After(deadline) {
						t.Fatalf("no %s: %+v", what, all)
					}
				}
			}
			start(t, p, 1)
			wait("pacing in slow start", func(s pacingPacing) bool {
				return s.Subflow == 1 && s.Window < s.Threshold && s.Status == needed
			})
			drop(t, p.Client, mptcptest.Link(0), 20)
			ended := wait("end of slow start", func(s pacingPacing) bool { return s.Window >= s.Threshold })
			// It is decided at the first acknowledgment after 10 ms.
			wait("pacing after slow start", func(s pacingPacing) bool {
				return s.Window >= s.Threshold && s.Delivered-ended.Delivered > 100 && s.Status == needed
			})
			netnstest.Do(t, p.Server, func() error { return tc.ClearRate(mptcptest.Link(0)) })
			wait(fmt.Sprintf("status %d of a fast one", fast), func(s pacingPacing) bool {
				return s.Delivered-ended.Delivered > 5000 && s.Status == fast
			})
		})
	}
}

// TestPaceAfterLoss: a subflow that sends what its window has room for sends it at once, until it
// has lost some.
func TestPaceAfterLoss(t *testing.T) {
	o := testOptions(t)
	o.Pace, o.Lowat = false, true
	p := mptcptest.New(t, netnstest.New(t), netnstest.New(t), 1)
	use(t, "lia", o, p.Server)
	netnstest.Do(t, p.Server, func() error {
		return tc.SetRate(mptcptest.Link(0), tc.Rate{Rate: 5 * unit.MbitPerSecond, Queue: 400 * time.Millisecond})
	})
	server, client := p.Connect(t, p.Listen(t))
	go func() { _, _ = io.Copy(io.Discard, client) }()
	read := sockets(t, p.Server)
	object := func() pacingPacing {
		t.Helper()
		if _, err := server.Write(make([]byte, 12_000)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // longer than it takes at 5 Mbit/s
		all := read()
		if len(all) != 1 {
			t.Fatalf("want one subflow: %+v", all)
		}
		return all[0]
	}
	for range 5 {
		if s := object(); s.Window < s.Threshold && s.Status != none {
			t.Fatalf("without a loss: %+v", s)
		}
	}
	drop(t, p.Client, mptcptest.Link(0), 5)
	for deadline := time.Now().Add(20 * time.Second); ; {
		if s := object(); s.Status == needed {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("not paced after losses")
		}
	}
}
