package tc

import (
	"errors"
	"math"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// tick is what PSCHED_SHIFT 6 gives on every Linux since 2.6.31: ticks of 64 ns.
const tick = 1000.0 / 64

func TestMain(m *testing.M) { netnstest.Main(m) }

// enter puts the calling test on a thread of its own in a new network namespace with the veth pair
// "shaped" and "far".
func enter(t *testing.T) netlink.Link {
	t.Helper()
	netnstest.Enter(t)
	// Nothing but the test's own packets may be counted.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "shaped"}, PeerName: "far"}); err != nil {
		t.Fatal(err)
	}
	var shaped netlink.Link
	for _, name := range []string{"far", "shaped"} {
		var err error
		if shaped, err = netlink.LinkByName(name); err == nil {
			err = netlink.LinkSetUp(shaped)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return shaped
}

// supported skips, or fails, when the error says that this kernel has no TBF.
func supported(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, errors.ErrUnsupported) && os.Getenv("TABANE_LAB") != "require" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// flood sends packets of 1000 bytes out of the link; those that the queue refuses are not an error.
func flood(t *testing.T, link netlink.Link, packets int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	frame := make([]byte, 1000)
	copy(frame, net.HardwareAddr{2, 0, 0, 0, 0, 1})
	frame[12], frame[13] = 0x88, 0xb5 // local experimental (IEEE 802)
	for range packets {
		err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index})
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			t.Fatal(err)
		}
	}
}

var rates = []struct {
	rate Rate
	// shows is what tc prints; it rounds the burst down to what is sent in whole microseconds.
	shows string
}{
	{Rate{Rate: 30 * unit.MbitPerSecond, Burst: 32 * unit.KiB, Queue: 50 * time.Millisecond}, "rate 30Mbit burst 32Kb lat 50ms"},
	{Rate{Rate: 15 * unit.MbitPerSecond, Burst: 15140, Queue: 20 * time.Millisecond}, "rate 15Mbit burst 15138b lat 20ms"},
	{Rate{Rate: 8 * unit.KbitPerSecond, Burst: 1514, Queue: time.Second}, "rate 8Kbit burst 1514b lat 1s"},
	{Rate{Rate: unit.GbitPerSecond, Burst: 250 * unit.KB, Queue: 10 * time.Millisecond}, "rate 1Gbit burst 250000b lat 10ms"},
	{Rate{Rate: 100 * unit.GbitPerSecond, Burst: 25 * unit.MB, Queue: time.Millisecond}, "rate 100Gbit"},
}

func TestSetRateIsReadBack(t *testing.T) {
	enter(t)
	for _, tt := range rates {
		err := SetRate("shaped", tt.rate)
		supported(t, err)
		got, err := Stats("shaped")
		if err != nil {
			t.Fatal(err)
		}
		within := func(what string, got, want, tolerance float64) {
			t.Helper()
			if math.Abs(got-want) > tolerance {
				t.Errorf("%+v: %s is %g, want %g", tt.rate, what, got, want)
			}
		}
		perTick := float64(tt.rate.Rate) / 8 * 64e-9
		within("rate", float64(got.Rate.Rate), float64(tt.rate.Rate), 0)
		within("burst", float64(got.Burst), float64(tt.rate.Burst), 1+perTick)
		within("queue", float64(got.Queue), float64(tt.rate.Queue), 64+2*float64(tt.rate.Rate.TimeFor(1)))
	}
}

// TestShowsRate compares with what the program tc says.
func TestShowsRate(t *testing.T) {
	enter(t)
	tcTool := programs.Need(t, "tc")
	for _, tt := range rates {
		supported(t, SetRate("shaped", tt.rate))
		out, err := exec.Command(tcTool, "-s", "qdisc", "show", "dev", "shaped").CombinedOutput()
		if err != nil || !strings.Contains(string(out), tt.shows) {
			t.Errorf("%+v: %v, tc shows %q, want %q", tt.rate, err, out, tt.shows)
		}
	}
}

func TestDefaults(t *testing.T) {
	link := enter(t)
	supported(t, SetRate("shaped", Rate{Rate: 30 * unit.MbitPerSecond}))
	s, err := Stats("shaped")
	if err != nil {
		t.Fatal(err)
	}
	if s.Burst < 32*unit.KiB || s.Burst > 32*unit.KiB+2 || s.Queue.Round(time.Microsecond) != DefaultQueue {
		t.Errorf("30 Mbit/s has a burst of %d bytes and a queue of %s", s.Burst, s.Queue)
	}
	if err := netlink.LinkSetMTU(link, 65535); err != nil {
		t.Fatal(err)
	}
	if err := SetRate("shaped", Rate{Rate: 30 * unit.MbitPerSecond}); err != nil {
		t.Fatal(err)
	}
	if s, err = Stats("shaped"); err != nil || s.Burst < 65535+14 {
		t.Errorf("with an MTU of 65535 the burst is %d bytes, %v", s.Burst, err)
	}
}

// What waits when the rate changes is still there afterwards, and so are the counters.
func TestSetRateInPlace(t *testing.T) {
	link := enter(t)
	slow := Rate{Rate: 8 * unit.KbitPerSecond, Burst: 1514, Queue: time.Minute}
	supported(t, SetRate("shaped", slow))
	flood(t, link, 50)
	before, err := Stats("shaped")
	if err != nil {
		t.Fatal(err)
	}
	if before.Waiting < 40 || before.Backlog != unit.Size(before.Waiting)*1000 || before.Packets+before.Waiting != 50 ||
		before.Sent != unit.Size(before.Packets)*1000 || before.Overlimits == 0 {
		t.Fatalf("after 50 packets: %+v", before)
	}
	for _, r := range []unit.Bandwidth{16 * unit.KbitPerSecond, 8 * unit.KbitPerSecond} {
		slow.Rate = r
		if err := SetRate("shaped", slow); err != nil {
			t.Fatal(err)
		}
	}
	after, err := Stats("shaped")
	if err != nil {
		t.Fatal(err)
	}
	if after.Packets+after.Waiting != 50 || after.Drops != 0 || after.Packets < before.Packets {
		t.Errorf("before the change %+v, after it %+v", before, after)
	}

	flood(t, link, 200)
	if full, err := Stats("shaped"); err != nil || full.Drops == 0 || full.Backlog > 61514 {
		t.Errorf("after 200 more packets: %+v, %v", full, err)
	}
	slow.Rate = 10 * unit.GbitPerSecond
	slow.Queue = DefaultQueue
	slow.Burst = 0
	if err := SetRate("shaped", slow); err != nil {
		t.Fatal(err)
	}
	if fast, err := Stats("shaped"); err != nil || fast.Rate.Rate != slow.Rate {
		t.Errorf("fast: %+v, %v", fast, err)
	}
}

func TestClearRate(t *testing.T) {
	link := enter(t)
	if err := ClearRate("shaped"); err != nil {
		t.Errorf("clear without a rate: %v", err)
	}
	if _, err := Stats("shaped"); !errors.Is(err, ErrNotShaped) {
		t.Errorf("statistics without a rate: %v, want ErrNotShaped", err)
	}
	supported(t, SetRate("shaped", Rate{Rate: unit.MbitPerSecond}))
	for range 2 {
		if err := ClearRate("shaped"); err != nil {
			t.Error(err)
		}
		if _, err := Stats("shaped"); !errors.Is(err, ErrNotShaped) {
			t.Errorf("statistics after clear: %v, want ErrNotShaped", err)
		}
	}

	other := &netlink.Prio{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(5, 0)},
		Bands: 3, PriorityMap: netlink.NewPrio(netlink.QdiscAttrs{}).PriorityMap}
	switch err := netlink.QdiscReplace(other); {
	case errors.Is(err, unix.ENOENT):
		t.Log("this kernel has no other discipline to leave alone")
	case err != nil:
		t.Fatal(err)
	default:
		if err := ClearRate("shaped"); err != nil {
			t.Error(err)
		}
		if root, err := rootQdisc(link); err != nil || root == nil || root.Type() != "prio" {
			t.Errorf("root is %v, %v, want the prio that was there", root, err)
		}
		if err := SetRate("shaped", Rate{Rate: unit.MbitPerSecond}); err != nil {
			t.Error(err)
		}
	}
}

func TestWrongInput(t *testing.T) {
	enter(t)
	for _, tt := range []struct {
		link string
		rate Rate
		says string
	}{
		{"absent", Rate{Rate: unit.MbitPerSecond}, `link "absent": Link not found`},
		{"", Rate{Rate: unit.MbitPerSecond}, `link "": `},
		{"shaped", Rate{}, "rate must be at least 8kbit/s, got 0bit/s"},
		{"shaped", Rate{Rate: -1}, "rate must be at least"},
		{"shaped", Rate{Rate: 9001}, "whole number of bytes per second, got 9.001kbit/s"},
		{"shaped", Rate{Rate: unit.MbitPerSecond, Burst: 1500}, "burst must be at least one packet of the link, 1514B, got 1500B"},
		{"shaped", Rate{Rate: unit.MbitPerSecond, Burst: -1}, "burst must be at least"},
		{"shaped", Rate{Rate: unit.MbitPerSecond, Queue: -1}, "queue must be > 0"},
		{"shaped", Rate{Rate: unit.TbitPerSecond, Queue: time.Hour}, "hold more than"},
		{"shaped", Rate{Rate: unit.TbitPerSecond, Burst: 5 * unit.GB}, "hold more than"},
		{"shaped", Rate{Rate: 8 * unit.KbitPerSecond, Burst: unit.MB}, "burst must be sent in"},
	} {
		if err := SetRate(tt.link, tt.rate); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("SetRate(%q, %+v): %v, want it to say %q", tt.link, tt.rate, err, tt.says)
		}
	}
	if err := ClearRate("absent"); err == nil {
		t.Error("ClearRate of an absent link gives no error")
	}
	if _, err := Stats("absent"); err == nil {
		t.Error("Stats of an absent link gives no error")
	}
	if _, err := Stats("shaped"); !errors.Is(err, ErrNotShaped) {
		t.Errorf("wrong input left something: %v", err)
	}
}

func TestRefusal(t *testing.T) {
	if err := refusal(unix.ENOENT); !errors.Is(err, errors.ErrUnsupported) || !errors.Is(err, unix.ENOENT) {
		t.Errorf("refusal(ENOENT) = %v, want errors.ErrUnsupported", err)
	}
	if err := refusal(unix.EPERM); !errors.Is(err, unix.EPERM) || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("refusal(EPERM) = %v, want it as it is", err)
	}
	if err := refusal(nil); err != nil {
		t.Errorf("refusal(nil) = %v", err)
	}
}

// Whatever is accepted means what was asked: at least the burst, by at most a tick, and the queue
// to the byte.
func TestPropertyParametersRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Rate{
			Rate:  8 * unit.Bandwidth(rapid.Int64Range(1000, 1e11).Draw(t, "rate")),
			Burst: unit.Size(rapid.Int64Range(1514, 1e8).Draw(t, "burst")),
			Queue: time.Duration(rapid.Int64Range(1, int64(time.Second)).Draw(t, "queue")),
		}
		tbf, err := r.tbf(1500, tick)
		if err != nil {
			t.Skip(err)
		}
		got := rateOf(tbf, tick)
		perTick := r.Rate.SizeIn(64*time.Nanosecond) + 2
		if got.Rate != r.Rate || got.Burst < r.Burst-1 || got.Burst > r.Burst+perTick {
			t.Fatalf("asked for %+v, got %+v", r, got)
		}
		if want := r.Burst + r.Rate.SizeIn(r.Queue); unit.Size(tbf.Limit) != want {
			t.Fatalf("limit is %d bytes, want %d", tbf.Limit, want)
		}
	})
}
