package silence

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/accessor"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

func encode(r programReport) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&r)), unsafe.Sizeof(r))
}

func TestDecode(t *testing.T) {
	mapped := netip.MustParseAddr("::ffff:192.0.2.1").As16()
	b := encode(programReport{
		Token: 7, SilenceUs: 60_000, Local: mapped, Remote: netip.MustParseAddr("2001:db8::1").As16(), LocalPort: 80, RemotePort: 40000,
	})
	got, err := decode(b)
	want := Report{Token: 7, Local: netip.MustParseAddrPort("192.0.2.1:80"), Remote: netip.MustParseAddrPort("[2001:db8::1]:40000"), Silence: 60 * time.Millisecond}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	if _, err := decode(b[:len(b)-1]); err == nil {
		t.Error("a short report is accepted")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(programReport{Token: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decode(b)
		accessor.Call(t, r)
		if err == nil && (r.Local.Addr().Is4In6() || r.Silence < 0) {
			t.Errorf("report %+v", r)
		}
	})
}

func TestCloseWakesReceive(t *testing.T) {
	netnstest.Need(t)
	w, err := New(Options{Least: 150 * time.Millisecond, LeastShort: 450 * time.Millisecond, ShortFlight: 16})
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan error)
	go func() {
		_, _, err := w.Receive()
		received <- err
	}()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if err := <-received; !errors.Is(err, os.ErrClosed) {
		t.Errorf("receive: %v, want os.ErrClosed", err)
	}
}
