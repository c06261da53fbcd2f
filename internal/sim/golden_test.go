package sim

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/gateway/reseq"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/mptcp/cc"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// fieldNames are the keys of JSON objects, which may be renamed without a change of the results.
var fieldNames = regexp.MustCompile(`"\w+":`)

// digest returns a digest of all values of the results.
func digest(t *testing.T, results ...Result) string {
	t.Helper()
	sum := sha256.New()
	for _, r := range results {
		for i := range r.Connections {
			m := &r.Connections[i].Reseq
			for _, h := range []*reseq.Histogram{&m.Delay, &m.Bursts} {
				fmt.Fprintln(sum, h.Count(), h.Min(), h.Max(), h.Sum(), h.SD(), slices.Collect(h.Bins()))
			}
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		sum.Write(fieldNames.ReplaceAll(text, nil))
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:8])
}

// Results stay the same bit for bit. A change that only makes the simulator faster changes no
// digest; one that changes its behavior updates the digests of the affected configurations with
// -update.
func TestResultsStay(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("other architectures round differently: they may add to a product at once")
	}
	var got strings.Builder
	is := func(name string, all ...Config) {
		results := make([]Result, len(all))
		for i, c := range all {
			results[i] = run(t, c)
		}
		fmt.Fprintln(&got, name, digest(t, results...))
	}
	short := func(change func(*Config, *Connection)) Config {
		c := paper(first, second)
		c.Duration, c.Series, c.Bursts = 10*time.Second, 100*ms, true
		change(&c, &c.Connections[0])
		return c
	}
	for _, scheduler := range sched.Names() {
		var all []Config
		for _, congestion := range cc.Names() {
			all = append(all,
				short(func(_ *Config, k *Connection) { k.Scheduler, k.Congestion = scheduler, congestion }),
				short(func(_ *Config, k *Connection) {
					k.Scheduler, k.Congestion, k.Window, k.ReceiveBuffer = scheduler, congestion, 0, 260*unit.KB
					k.RACK, k.DelayedACK, k.Handshake = true, true, true
				}))
		}
		is("scheduler/"+scheduler, all...)
	}
	for _, tt := range []struct {
		name   string
		change func(*Config, *Connection)
	}{
		{"rbuf", func(_ *Config, k *Connection) { k.RBuf = 65 * unit.KB }},
		{"rack", func(_ *Config, k *Connection) { k.RACK = true }},
		{"delayed-ack", func(_ *Config, k *Connection) { k.DelayedACK, k.QuickACKs = true, 16 }},
		{"right-sizing", func(_ *Config, k *Connection) { k.Window, k.ReceiveBuffer, k.InitialReceive = 0, unit.MB, 64*unit.KB }},
		{"blocked", func(_ *Config, k *Connection) { k.ReceiveBuffer, k.Opportunistic, k.Penalize = 40*unit.KB, true, true }},
		{"paced", func(_ *Config, k *Connection) { k.Rate, k.Stop = 3*unit.MbitPerSecond, 8*time.Second }},
		{"fails", func(c *Config, _ *Connection) {
			c.Changes = []Change{{At: 2 * time.Second, Link: 4, Down: true}, {At: 6 * time.Second, Link: 4, Up: true}}
		}},
		{"jitter", func(c *Config, _ *Connection) {
			c.Links[1].Jitter = linkmodel.Jitter{Kind: linkmodel.Normal, Amount: 5 * ms, Reorder: true}
			c.Links[5].Jitter = linkmodel.Jitter{Kind: linkmodel.Uniform, Amount: 5 * ms}
		}},
		{"duplicates", func(c *Config, _ *Connection) { c.Links[0].Duplicate, c.Links[3].Duplicate = 0.05, 0.05 }},
		{"cross", func(c *Config, _ *Connection) {
			c.Cross = []Cross{
				{Kind: Poisson, Rate: unit.MbitPerSecond, Size: 500, Out: []int{0}},
				{Kind: OnOff, Rate: 4 * unit.MbitPerSecond, Size: 1000, Out: []int{4, 5}, On: 100 * ms, Off: 300 * ms, Pareto: 1.5},
			}
		}},
	} {
		is(tt.name, short(tt.change))
	}
	// Packets that pass the same link more than once.
	var again []Config
	for delay := 100 * ms; delay <= 300*ms; delay += 20 * ms {
		again = append(again, short(func(c *Config, k *Connection) {
			c.Links[0].Delay, c.Links[0].Queue.Limit, k.Window = delay, linkmodel.Limit{Packets: 300}, 0
			k.Paths = []Path{{Out: []int{0, 0}, Back: []int{0}}}
		}))
	}
	is("again", again...)
	crowd := many(50)
	crowd.Duration = 3 * time.Second
	is("crowd", crowd)
	var random []Config
	for i := range 300 {
		c := rapid.Custom(genConfig).Example(i)
		c.Duration = 20 * time.Second
		random = append(random, c)
	}
	is("random", random...)

	const golden = "testdata/results.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	lines, before := strings.Split(got.String(), "\n"), strings.Split(string(want), "\n")
	if len(lines) != len(before) {
		t.Fatalf("%d results, want %d", len(lines), len(before))
	}
	for i, line := range lines {
		if line != before[i] {
			t.Errorf("got digest %q, want %q; if the change is intended, rewrite the file with -update", line, before[i])
		}
	}
}
