package ccbpf

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/mptcp/mptcptest"
)

// acked returns the bytes acknowledged on each subflow of a namespace, by the address of the peer.
func acked(t testing.TB, namespace string) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	netnstest.Do(t, namespace, func() error {
		d, err := mptcp.DialDiag()
		if err != nil {
			return err
		}
		return errors.Join(d.Subflows(mptcp.IPv6, func(s mptcp.Subflow) { all[s.Remote.Addr().String()] += s.Acked }), d.Close())
	})
	return all
}

// TestRates measures the rates of two subflows, before and after a change.
func TestRates(t *testing.T) {
	const mbit = unit.MbitPerSecond
	o := testOptions(t)
	o.Rates = []unit.Bandwidth{80 * mbit, 20 * mbit}
	p := mptcptest.New(t, netnstest.New(t), netnstest.New(t), 2)
	use(t, Ratio, o, p.Server)
	start(t, p, 1)
	first := ""
	// rate returns the rates of the first subflow and of both in bit/s.
	rate := func() (own, total float64) {
		begun, before := time.Now(), acked(t, p.Server)
		time.Sleep(700 * time.Millisecond)
		after, lasted := acked(t, p.Server), time.Since(begun).Seconds()
		if len(before) != 2 || len(after) != 2 {
			t.Fatalf("subflows %v and %v, want two", before, after)
		}
		for peer := range after {
			rate := 8 * float64(after[peer]-before[peer]) / lasted
			if total += rate; first == "" && rate > 50e6 {
				first = peer
			}
			if peer == first {
				own = rate
			}
		}
		return own, total
	}
	// A machine with other load may not send in time, and sends what is due afterwards.
	check := func(rates ...unit.Bandwidth) {
		t.Helper()
		time.Sleep(time.Second)
		want := float64(rates[0] + rates[1])
		for try := 0; ; try++ {
			own, total := rate()
			t.Logf("rates %v: share %.4f, goodput %.1f Mbit/s", rates, own/total, total/1e6)
			if math.Abs(own/total-float64(rates[0])/want) <= 0.02 && math.Abs(total/want-1) <= 0.03 {
				return
			}
			if try == 12 {
				t.Fatalf("rates %v: share %.4f of %.1f Mbit/s", rates, own/total, total/1e6)
			}
		}
	}
	check(o.Rates...)
	o.Rates = []unit.Bandwidth{15 * mbit, 35 * mbit}
	if outcome, err := Load(Ratio, o); err != nil || outcome != Unchanged {
		t.Fatalf("change the rates: %v, %v", outcome, err)
	}
	check(o.Rates...)
	list, err := List(o.Dir)
	if err != nil || len(list) != 1 || !slices.Equal(list[0].Rates, o.Rates) {
		t.Errorf("list %+v, %v", list, err)
	}
	if _, err := os.Stat(filepath.Join(o.Dir, RatesPin)); err != nil {
		t.Error(err)
	}
}

func TestRatesFaults(t *testing.T) {
	o := testOptions(t)
	o.Rates = make([]unit.Bandwidth, MaxRates+1)
	if _, err := Load(Ratio, o); err == nil {
		t.Error("too many rates are accepted")
	}
	o.Rates = []unit.Bandwidth{MaxRate + 8}
	if _, err := Load(Ratio, o); err == nil {
		t.Error("a rate beyond 32 bits is accepted")
	}
	if err := SetRates(o.Dir, Ratio, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("rates of a control that is not loaded: %v", err)
	}
	if list, err := List(o.Dir); err != nil || len(list) != 0 {
		t.Errorf("loaded %v, %v", list, err)
	}
	o.Rates = nil
	if outcome, err := Load(Ratio, o); err != nil || outcome != Loaded {
		t.Fatalf("load without rates: %v, %v", outcome, err)
	}
	if err := Unload(o.Dir, Ratio); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(o.Dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestRatesHeal: loading again brings a lost pin of rates back, and unloading removes one that a
// killed load has left.
func TestRatesHeal(t *testing.T) {
	o := testOptions(t)
	pin := filepath.Join(o.Dir, RatesPin)
	if _, err := Load(Ratio, o); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(pin); err != nil {
		t.Fatal(err)
	}
	o.Rates = []unit.Bandwidth{8000}
	if outcome, err := Load(Ratio, o); err != nil || outcome != Replaced {
		t.Errorf("load without the pin: %v, %v", outcome, err)
	}
	if rates, err := Rates(o.Dir); err != nil || !slices.Equal(rates, o.Rates) {
		t.Errorf("rates are %v, %v", rates, err)
	}
	if err := os.Remove(filepath.Join(o.Dir, Ratio)); err != nil {
		t.Fatal(err)
	}
	if err := Unload(o.Dir, Ratio); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("unload what is not loaded: %v", err)
	}
	if left, err := os.ReadDir(o.Dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
