package labrun

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/mptcp"
)

// socket returns a reading of a subflow between the first addresses of a path.
func socket(path string, port uint16, acked uint64, window, inFlight, token uint32) *mptcp.Socket {
	return &mptcp.Socket{Subflow: mptcp.Subflow{
		Token: token, Local: netip.AddrPortFrom(netip.MustParseAddr(path), 8443), Remote: netip.AddrPortFrom(netip.MustParseAddr("2001:db8::2"), port),
		Acked: acked, Window: window, InFlight: inFlight,
	}}
}

func TestPathWatch(t *testing.T) {
	watched := func(links int, want bool, sockets ...*mptcp.Socket) (*result.Run, error) {
		w := &pathWatch{cancel: func() {}, done: make(chan struct{}), paths: map[netip.Addr]*pathSockets{}, acked: map[pair]uint64{}, links: links, want: want}
		close(w.done)
		for _, s := range sockets {
			w.sample(pair{s.Local, s.Remote}, s)
		}
		run := &result.Run{Metrics: map[string]float64{}}
		return run, w.put(2*time.Second, run)
	}
	const a, b = "2001:db8:1::1", "2001:db8:2::1"
	run, err := watched(2, true,
		socket(a, 1, 1000, 10, 5, 7), socket(b, 1, 500, 20, 5, 7), socket(a, 1, 4000, 30, 5, 7), socket(b, 1, 1000, 99, 0, 7), socket(a, 2, 5000, 20, 1, 8))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{result.PathWindow: 20, result.PathThroughput: 20000, result.LeastPath: 0.1} {
		if got := run.Metrics[name]; got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	if run, err = watched(4, true, socket(a, 1, 1000, 10, 5, 7)); err != nil || run.Metrics[result.LeastPath] != 0 {
		t.Errorf("unused paths: %v, %v", run.Metrics, err)
	}
	for name, tt := range map[string]struct {
		mptcp  bool
		socket *mptcp.Socket
		want   string
	}{
		"fallback":   {true, socket(a, 1, 1000, 10, 5, 0), "fell back"},
		"unexpected": {false, socket(a, 1, 1000, 10, 5, 7), "used MPTCP"},
		"nothing":    {true, socket(a, 1, 0, 10, 0, 7), "sent nothing"},
	} {
		if _, err := watched(1, tt.mptcp, tt.socket); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}

func TestUsage(t *testing.T) {
	run := &result.Run{Metrics: map[string]float64{}}
	for _, tt := range []struct {
		usage
		want string
	}{
		{usage{idle: 150, total: 300, late: 1, delivered: 1000}, ""},
		{usage{idle: 105, total: 300, late: 1, delivered: 1000}, "idle for 2 %"},
		{usage{idle: 150, total: 300, late: 30, delivered: 1000}, "3.0 % of the frames more than 5 ms late"},
	} {
		if got := tt.since(usage{idle: 100, total: 100}, run); tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%+v: got %q, want %q", tt.usage, got, tt.want)
		}
	}
	if idle, total, err := processorTimes(); err != nil || total == 0 || idle > total {
		t.Errorf("processor times: %d of %d, %v", idle, total, err)
	}
}

func TestRepeats(t *testing.T) {
	for _, tt := range []struct {
		trials, want int
	}{{288, 36}, {4, 2}, {32, 4}} {
		w := &web{repeats: repeatsOf(tt.trials)}
		n := 0
		for n <= tt.trials && w.repeat() {
			n++
		}
		if n != tt.want {
			t.Errorf("%d trials: %d repeated, want %d", tt.trials, n, tt.want)
		}
	}
}
