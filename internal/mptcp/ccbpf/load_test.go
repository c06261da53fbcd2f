package ccbpf

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/btf"

	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// testOptions returns options with a BPF file system and names of the test's own.
func testOptions(t testing.TB) Options {
	t.Helper()
	netnstest.Need(t)
	if err := Supported(); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	return Options{Dir: bpftest.Mount(t) + "/cc", Pace: true, Prefix: fmt.Sprintf("t%d_", os.Getpid()%100000)}
}

// available reports whether the kernel has a control with the name.
func available(t testing.TB, name string) bool {
	t.Helper()
	all, err := netns.ReadSysctl("net.ipv4.tcp_available_congestion_control")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range strings.Fields(all) {
		if n == name {
			return true
		}
	}
	return false
}

func TestLoadAndUnload(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			kernelName := o.Prefix + name
			start := time.Now()
			if outcome, err := Load(name, o); err != nil || outcome != Loaded {
				t.Fatalf("load: %v, %v", outcome, err)
			}
			t.Logf("loaded in %v", time.Since(start))
			if !available(t, kernelName) {
				t.Errorf("%s is not available", kernelName)
			}
			if outcome, err := Load(name, o); err != nil || outcome != Unchanged {
				t.Errorf("load again: %v, %v", outcome, err)
			}
			list, err := List(o.Dir)
			if err != nil || len(list) != 1 || list[0].Name != name || !list[0].Current || !list[0].Version.Paced() || len(list[0].Programs) < 5 || list[0].Repairs != 0 {
				t.Errorf("list: %+v, %v", list, err)
			}
			bursts := o
			bursts.Pace = false
			start = time.Now()
			if outcome, err := Load(name, bursts); err != nil || outcome != Replaced {
				t.Errorf("load another version: %v, %v", outcome, err)
			}
			t.Logf("replaced in %v", time.Since(start))
			if list, err := List(o.Dir); err != nil || len(list) != 1 || list[0].Version.Paced() || !list[0].Current {
				t.Errorf("list: %+v, %v", list, err)
			}
			bounded := bursts
			bounded.Lowat = true
			if outcome, err := Load(name, bounded); err != nil || outcome != Replaced {
				t.Errorf("load with lowat: %v, %v", outcome, err)
			}
			if list, err := List(o.Dir); err != nil || len(list) != 1 || list[0].Version.Paced() || !list[0].Version.Lowat() || !list[0].Current {
				t.Errorf("list: %+v, %v", list, err)
			}
			// Somewhere else it is not known who loaded it.
			elsewhere := o
			elsewhere.Dir += "-elsewhere"
			if _, err := Load(name, elsewhere); !errors.Is(err, ErrTaken) {
				t.Errorf("load elsewhere: %v", err)
			}
			if err := Unload(o.Dir, name); err != nil {
				t.Error(err)
			}
			for deadline := time.Now().Add(5 * time.Second); available(t, kernelName); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%s is still available", kernelName)
				}
			}
			if err := Unload(o.Dir, name); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("unload again: %v", err)
			}
		})
	}
}

// BenchmarkLoad loads a control and unloads it, as the only thing that a process does: with the
// kernel's types decoded once each.
func BenchmarkLoad(b *testing.B) {
	o := testOptions(b)
	for b.Loop() {
		kernelTypes = btf.NewCache()
		if _, err := Load("lia", o); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := Unload(o.Dir, "lia"); err != nil {
			b.Fatal(err)
		}
		settle(b, o.Prefix+"lia", false)
		b.StartTimer()
	}
}
