package belief

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/testkit/accessor"
	"github.com/tabane/tabane/internal/testkit/heap"
)

const (
	a, b   = Mode("single a"), Mode("single b")
	origin = 64500
)

var (
	able  = []Mode{Best, a, b}
	start = time.Unix(1_800_000_000, 0)
)

func originAS(as uint32) func() uint32 { return func() uint32 { return as } }

func prefix(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, byte(i >> 16), byte(i >> 8), byte(i)}), 40)
}

func newTable() *Table { return New(Options{Explore: 0.1, Networks: 1000, Start: Best}) }

func (t *Table) mustLearn(test testing.TB, now time.Time, p netip.Prefix, c, i Mode, ratio float64) {
	test.Helper()
	if err := t.Learn(now, p, Pair{Challenger: c, Incumbent: i, Ratio: ratio, Bytes: 1}); err != nil {
		test.Fatal(err)
	}
}

func (t *Table) join(now time.Time, p netip.Prefix) {
	t.Closed(now, p, originAS(origin), Best, Outcome{Bytes: 100 * Bulk, Goodput: 1e6})
	t.Try(now, p, origin, able, 0, 1)
}

// TestChange: a network changes to the mode that was measured to be better, and back once it is
// not.
func TestChange(test *testing.T) {
	t := newTable()
	t.join(start, prefix(1))
	for i := range 3 {
		if got := t.Mode(start, prefix(1), origin, able); got != Best && i == 0 {
			test.Fatalf("starts with %s", got)
		}
		t.mustLearn(test, start, prefix(1), a, Best, 1.5)
	}
	if got := t.Mode(start, prefix(1), origin, able); got != a {
		test.Fatalf("%s, want %s", got, a)
	}
	info, _ := t.Network(start, prefix(1))
	if info.Why != "measured +50 % against best" && !strings.HasPrefix(info.Why, "measured +4") || info.Modes[0].Mode != a {
		test.Errorf("%+v", info)
	}
	for range 100 { // it has become worse
		t.mustLearn(test, start, prefix(1), Best, a, 1.5)
		if t.Mode(start, prefix(1), origin, able) == Best {
			return
		}
	}
	test.Error("stays in a mode that has become worse")
}

// TestFollows: a mode that has become the best one is found soon, whatever was measured of it for
// long, and while another one is always as good as the network's.
func TestFollows(test *testing.T) {
	const changes, soon = 300, 40
	for seed := range uint64(20) {
		t, p, r := newTable(), prefix(1), rand.New(rand.NewPCG(seed, 0))
		t.join(start, p)
		brings := map[Mode]float64{Best: 1, a: 1, b: 0.75}
		took := 0
		for i := 0; took == 0; i++ {
			if i == changes {
				brings[b] = 1.3
			}
			if c, incumbent, ok := t.Try(start, p, origin, able, 0, 1); ok {
				t.mustLearn(test, start, p, c, incumbent, brings[c]/brings[incumbent]*math.Exp(0.05*r.NormFloat64()))
			}
			m := t.Mode(start, p, origin, able)
			t.Closed(start, p, originAS(origin), m, Outcome{Bytes: 100 * Bulk, Goodput: 1e6})
			if i > changes && m == b || i == 10*changes {
				took = i - changes
			}
		}
		if took > soon {
			test.Errorf("seed %d: after %d connections, want %d at most", seed, took, soon)
		}
	}
}

// TestDeadPath: a mode that makes no progress is left at once, whatever was measured, returns only
// after it was measured again, and rests longer each time.
func TestDeadPath(test *testing.T) {
	t, now := newTable(), start
	t.join(now, prefix(1))
	for range 1000 { // poisoned: as much as a client can claim
		t.mustLearn(test, now, prefix(1), a, Best, 1e300)
	}
	if got := t.Mode(now, prefix(1), origin, able); got != a {
		test.Fatal(got)
	}
	last := time.Duration(0)
	for i := range 12 {
		if t.Stalled(now, prefix(1), origin, a, false); t.Mode(now, prefix(1), origin, able) == a {
			test.Fatalf("stall %d: stays", i)
		}
		info, _ := t.Network(now, prefix(1))
		at := slices.IndexFunc(info.Modes, func(m ModeInfo) bool { return m.Mode == a })
		rest := info.Modes[at].Rest
		if rest < last-time.Second || rest >= mostRest+time.Second { // it ends with a second
			test.Errorf("rests %v after %v", rest, last)
		}
		last = rest
		for range 100 {
			if c, _, ok := t.Try(now, prefix(1), origin, able, 1e12, 1); ok && c == a {
				test.Fatal("is tried while it rests")
			}
		}
		now = now.Add(rest + 1)
		if got := t.Mode(now, prefix(1), origin, able); got == a {
			test.Fatal("returns without a trial")
		}
	}
	if last < mostRest {
		test.Errorf("rests %v", last)
	}
	// All modes are dead.
	for _, m := range able {
		t.Stalled(now, prefix(1), origin, m, false)
	}
	if got := t.Mode(now, prefix(1), origin, able); got != Best {
		test.Errorf("with no mode left: %s", got)
	}
	t.Mode(now, prefix(1), origin, []Mode{b, a})
	if got := t.Mode(now.Add(time.Hour), prefix(1), origin, []Mode{b}); got != b {
		test.Errorf("%s, want the only one", got)
	}
}

// TestAfterANamedMode: a network of which a mode was in use that cannot be chosen begins as a new one
// does.
func TestAfterANamedMode(test *testing.T) {
	t := New(Options{Explore: 0.1, Networks: 1000, Start: b})
	t.Closed(start, prefix(1), originAS(origin), "spray", Outcome{Bytes: 100 * Bulk, Goodput: 1e6})
	if got := t.Mode(start, prefix(1), origin, able); got != b {
		test.Errorf("%s, want %s", got, b)
	}
	t.Closed(start, prefix(2), originAS(origin), "spray", Outcome{Bytes: 100 * Bulk, Goodput: 1e6})
	t.Stalled(start, prefix(2), origin, b, false)
	if got := t.Mode(start, prefix(2), origin, able); got == b {
		test.Errorf("%s, which made no progress", got)
	}
}

// TestWithdrawn: a mode that cannot be used is never chosen or tried.
func TestWithdrawn(test *testing.T) {
	rapid.Check(test, func(test *rapid.T) {
		t, now := New(Options{Explore: 1, Networks: 4, Start: a}), start
		for range 40 {
			p := prefix(rapid.IntRange(0, 5).Draw(test, "network"))
			now = now.Add(time.Duration(rapid.Int64Range(-3600, 3600).Draw(test, "seconds")) * time.Second) // the clock steps
			can := append([]Mode{Best}, rapid.SliceOfNDistinct(rapid.SampledFrom([]Mode{a, b, "spread"}), 0, 3, rapid.ID[Mode]).Draw(test, "able")...)
			switch rapid.IntRange(0, 4).Draw(test, "event") {
			case 0:
				t.Closed(now, p, originAS(origin), rapid.SampledFrom(can).Draw(test, "mode"), Outcome{
					Bytes: rapid.Uint64Max(1<<62).Draw(test, "bytes") >> rapid.IntRange(0, 60).Draw(test, "shift"), Goodput: rapid.Float64().Draw(test, "goodput"),
				})
			case 1:
				_ = t.Learn(now, p, Pair{Challenger: rapid.SampledFrom(can).Draw(test, "challenger"), Incumbent: Best, Ratio: math.Exp(rapid.Float64Range(-5, 5).Draw(test, "ln")), Bytes: rapid.Float64().Draw(test, "bytes")})
			case 2:
				t.Stalled(now, p, origin, rapid.SampledFrom(can).Draw(test, "mode"), false)
			case 3:
				if c, i, ok := t.Try(now, p, origin, can, rapid.Float64().Draw(test, "running"), 1); ok && (!slices.Contains(can, c) || !slices.Contains(can, i) || c == i) {
					test.Fatalf("tries %s against %s of %v", c, i, can)
				}
			}
			if m := t.Mode(now, p, origin, can); !slices.Contains(can, m) {
				test.Fatalf("%s is none of %v", m, can)
			}
			if t.Len() > 4 {
				test.Fatal("too many networks")
			}
			if i, ok := t.Network(now, p); ok {
				for _, m := range i.Modes {
					if math.IsNaN(m.Gain) || math.IsInf(m.Gain, 0) || math.IsNaN(m.SD) || m.SD > 2 {
						test.Fatalf("%+v", m)
					}
				}
			}
		}
		for _, r := range t.RecordsOf(t.Prefixes()) {
			if err := r.check(now.Add(200 * time.Hour)); err != nil {
				test.Fatalf("%v: %+v", err, r)
			}
		}
	})
}

// TestPoisonStays: what is claimed of a network changes no other one that is known, nor where new
// ones begin beyond what others believe.
func TestPoisonStays(test *testing.T) {
	run := func(poison bool) (Info, Mode) {
		t := newTable()
		for i := range 4 {
			t.join(start, prefix(i))
			t.mustLearn(test, start, prefix(i), a, Best, 1.1)
		}
		if poison {
			t.join(start, prefix(99))
			for i := range 1000 {
				t.mustLearn(test, start, prefix(99), b, Best, 1e9)
				t.mustLearn(test, start, prefix(99), a, Best, 1e-9)
				t.Closed(start, prefix(99), originAS(origin), b, Outcome{Bytes: math.MaxUint64, Goodput: math.MaxFloat64})
				t.Stalled(start.Add(time.Duration(i)*time.Second), prefix(99), origin, a, false)
			}
		}
		info, _ := t.Network(start, prefix(0))
		return info, t.Mode(start, prefix(50), origin, able)
	}
	clean, cleanStart := run(false)
	poisoned, poisonedStart := run(true)
	if diff := cmp.Diff(clean, poisoned, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		test.Errorf("another network changed:\n%s", diff)
	}
	if cleanStart != a || poisonedStart != a {
		test.Errorf("new networks begin with %s, with poison %s, want %s", cleanStart, poisonedStart, a)
	}
}

// TestPoisonedVote: where a network begins is what most others of its AS believe, whatever one of them
// does and whenever it was measured.
func TestPoisonedVote(test *testing.T) {
	const others = 5
	for poisoned := range others {
		t := newTable()
		for i := range others {
			t.join(start, prefix(i))
			ratio := 0.8
			if i == poisoned {
				ratio = 20
			}
			for range 20 {
				t.mustLearn(test, start, prefix(i), a, Best, ratio)
			}
		}
		if got := t.Mode(start, prefix(others), origin, able); got == a {
			test.Errorf("begins with %s, which network %d alone says is better", got, poisoned)
		}
	}
}

// TestContradictions: measurements that contradict each other do not make a network change all the
// time.
func TestContradictions(test *testing.T) {
	t := newTable()
	t.join(start, prefix(1))
	changes, mode := 0, Best
	for i := range 1000 {
		t.Try(start, prefix(1), origin, able, 1e12, 1)
		ratio := 3.0
		if i%2 == 0 {
			ratio = 1 / ratio
		}
		t.mustLearn(test, start, prefix(1), a, Best, ratio)
		if m := t.Mode(start, prefix(1), origin, able); m != mode {
			changes++
			mode = m
		}
	}
	if changes > 1000/dwellConnections*2 {
		test.Errorf("%d changes", changes)
	}
}

func TestInvalid(test *testing.T) {
	t := newTable()
	if err := t.Learn(start, prefix(1), Pair{Challenger: a, Incumbent: Best, Ratio: 1}); err == nil {
		test.Error("learns of an unknown network")
	}
	t.join(start, prefix(1))
	before, _ := t.Network(start, prefix(1))
	for _, p := range []Pair{
		{a, Best, 0, 0, 1}, {a, Best, 0, -1, 1}, {a, Best, 0, math.NaN(), 1}, {a, Best, 0, math.Inf(1), 1}, {a, Best, 0, 1, math.NaN()}, {a, Best, 0, 1, -1}, {a, a, 0, 1, 1},
		{"", Best, 0, 1, 1}, {Mode(strings.Repeat("x", 1000)), Best, 0, 1, 1}, {"a\n", Best, 0, 1, 1}, {a, Best, -1, 1, 1},
	} {
		if err := t.Learn(start, prefix(1), p); err == nil {
			test.Errorf("%+v is accepted", p)
		}
	}
	if after, _ := t.Network(start, prefix(1)); !cmp.Equal(before, after, cmpopts.EquateComparable(netip.Prefix{})) {
		test.Errorf("changed to %+v", after)
	}
}

// TestBudget: trials carry no more than their share, and stop while they have lost too much.
func TestBudget(test *testing.T) {
	for _, explore := range []float64{0, 0.05, 0.25} {
		t := New(Options{Explore: explore, Networks: 10, Start: Best})
		const part = Bulk
		var brought, tried, lost, most float64
		for range 2000 {
			t.Closed(start, prefix(1), originAS(origin), Best, Outcome{Bytes: 2 * part, Goodput: 1e6})
			brought += 2 * part
			c, i, ok := t.Try(start, prefix(1), origin, able, 0, part)
			if !ok {
				continue
			}
			const ratio = 0.5 // all others are bad
			tried += part
			lost += part
			most = max(most, lost/brought)
			if err := t.Learn(start, prefix(1), Pair{c, i, 0, ratio, part}); err != nil {
				test.Fatal(err)
			}
		}
		if tried > explore*(brought)+part || lost > mostLoss*brought+2*part {
			test.Errorf("explore %.2f: tried %.0f and lost %.0f of %.0f", explore, tried, lost, brought)
		}
		if explore > 0 && tried == 0 {
			test.Error("nothing is tried")
		}
	}
}

// TestManyNetworks: of a million networks where there is room for a tenth, those that bring much
// stay. Nothing is kept of the others, even if it could not be exchanged.
func TestManyNetworks(test *testing.T) {
	const room = 100_000
	t := New(Options{Explore: 0.1, Networks: room, Start: Best})
	t.Share(true)
	before, early := heap.InUse(), uint64(0)
	for i := range 10 * room {
		if i == 2*room {
			early = heap.InUse() - before
		}
		now := start.Add(time.Duration(i) * time.Second)
		t.Closed(now, prefix(i), originAS(origin), Best, Outcome{Bytes: Bulk, Goodput: 1e6})
		if i%5 == 0 {
			t.Closed(now, prefix(0), originAS(origin), Best, Outcome{Bytes: 1000 * Bulk, Goodput: 1e6})
		}
	}
	if ordered := len(t.Prefixes()); t.Len() != room || ordered != room || t.Evicted() != 9*room {
		test.Errorf("%d networks, %d in order, %d evicted", t.Len(), ordered, t.Evicted())
	}
	late := heap.InUse() - before
	test.Logf("%d bytes after %d networks, %d after %d", early, 2*room, late, 10*room)
	if late > early+early/5 {
		test.Error("memory grows")
	}
	if x := t.exchanges; len(x.fresh)+len(x.asked) > 2*room {
		test.Errorf("%d and %d networks are to be asked for", len(x.fresh), len(x.asked))
	}
	if _, ok := t.Network(start, prefix(0)); !ok {
		test.Error("the network that brought most is gone")
	}
	t.Closed(start, prefix(-1), originAS(origin), Best, Outcome{Bytes: Bulk - 1})
	if _, ok := t.Network(start, prefix(-1)); ok {
		test.Error("a short connection adds a network")
	}
}

// TestFile: a file has what the next instance needs, and nothing else is read.
func TestFile(test *testing.T) {
	t := newTable()
	for i := range 50 {
		t.join(start, prefix(i))
		t.mustLearn(test, start, prefix(i), a, Best, 1.3)
		t.Mode(start, prefix(i), origin, able)
	}
	var file bytes.Buffer
	if err := Write(&file, func(yield func(*Record) bool) {
		for _, r := range t.RecordsOf(t.Prefixes()) {
			if !yield(&r) {
				return
			}
		}
	}); err != nil {
		test.Fatal(err)
	}
	text := file.String()
	later := start.Add(time.Second)
	next := newTable()
	if n, err := next.Read(later, strings.NewReader(text)); n != 50 || err != nil {
		test.Fatalf("read %d: %v", n, err)
	}
	was, _ := t.Network(start, prefix(7))
	is, _ := next.Network(start, prefix(7))
	if diff := cmp.Diff(was, is, cmpopts.EquateComparable(netip.Prefix{}), cmpopts.EquateApproxTime(0)); diff != "" {
		test.Error(diff)
	}
	if n, err := next.Read(later, strings.NewReader(text)); n != 0 || err != nil {
		test.Errorf("again: %d, %v", n, err)
	}
	if n, err := newTable().Read(start.Add(forgetAge+time.Minute), strings.NewReader(text)); n != 0 || err != nil {
		test.Errorf("a week later: %d, %v", n, err)
	}
	if n, err := newTable().Read(start.Add(-time.Hour), strings.NewReader(text)); n != 0 || err == nil || !strings.Contains(err.Error(), "in the future") {
		test.Errorf("before: %d, %v", n, err)
	}
	for name, bad := range map[string]string{
		"": "no header", "garbage": "no header", `{"format":"tabane networks","version":2}`: "version 2, want 1", `{"version":1}`: "no header",
	} {
		if n, err := newTable().Read(later, strings.NewReader(name)); n != 0 || !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), bad) {
			test.Errorf("%q: %d, %v", name, n, err)
		}
	}
	cut := text[:len(text)/2]
	if n, err := newTable().Read(later, strings.NewReader(cut)); n < 20 || err == nil || !strings.Contains(err.Error(), "ignored 1 invalid records; line") {
		test.Errorf("cut off: %d, %v", n, err)
	}
	for name, change := range map[string]func(*Record){
		"covariance": func(r *Record) { r.Related[1] = 9 }, "variance": func(r *Record) { r.Related[2] = -1 }, "mean": func(r *Record) { r.Modes[1].Mean = 1e9 },
		"modes": func(r *Record) { r.Modes = nil }, "mode twice": func(r *Record) { r.Modes[1].Mode = r.Modes[0].Mode }, "noise": func(r *Record) { r.Noise = 0 }, "noise apart": func(r *Record) { r.ApartNoise = -1 },
		"bytes": func(r *Record) { r.Bulk = -1 }, "prefix": func(r *Record) { r.Prefix = netip.MustParsePrefix("2001:db8::1/32") }, "reference": func(r *Record) { r.Modes[0].Mean = 1 },
	} {
		r := t.RecordsOf(t.Prefixes())[0]
		r.Modes = slices.Clone(r.Modes)
		change(&r)
		if ok, err := newTable().Restore(later, &r); ok || err == nil {
			test.Errorf("%s: accepted", name)
		}
	}
}

func FuzzDecode(f *testing.F) {
	t := newTable()
	t.join(start, prefix(1))
	line, err := t.RecordsOf(t.Prefixes())[0].encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add([]byte(`{"prefix":"::/0","mode":"best","modes":[{}],"covariance":[1]}`))
	f.Fuzz(func(test *testing.T, line []byte) {
		t := newTable()
		ok, err := t.Decode(start.Add(time.Hour), line)
		if ok && err != nil {
			test.Fatal(err)
		}
		for _, r := range t.RecordsOf(t.Prefixes()) {
			accessor.Call(test, r)
			info, _ := t.Network(start, r.Prefix)
			accessor.Call(test, info)
			for range 50 {
				t.Try(start.Add(time.Hour), r.Prefix, r.Origin, able, 1e12, 1)
				_ = t.Learn(start, r.Prefix, Pair{a, Best, 0, 1.5, 1})
			}
			if m := t.Mode(start.Add(time.Hour), r.Prefix, r.Origin, able); !slices.Contains(able, m) {
				test.Errorf("mode %s", m)
			}
		}
	})
}

func (r Record) encode() ([]byte, error) { return json.Marshal(r) }

// BenchmarkOffered offers ten networks for each that there is room for: memory and time of each.
func BenchmarkOffered(bench *testing.B) {
	const room = 100_000
	t := New(Options{Explore: 0.1, Networks: room, Start: Best})
	modes := []Mode{Best, "multipath", "single transit-a", "single transit-b", "spread"}
	i := 0
	for bench.Loop() {
		p := prefix(i % (10 * room))
		t.Closed(start, p, originAS(uint32(i%5000)), Best, Outcome{Bytes: Bulk, Goodput: 1e6})
		t.Try(start, p, uint32(i%5000), modes, 0, 1)
		i++
	}
	bench.ReportMetric(float64(t.Len()), "networks")
}

func ExampleLimit_String() {
	fmt.Println(ByPath, ByApplication, ByWindow)
	// Output: path application window
}

// TestClientAlone: what a single client makes of a mode does not erase what was measured.
func TestClientAlone(test *testing.T) {
	t := newTable()
	t.join(start, prefix(1))
	for range 20 {
		t.mustLearn(test, start, prefix(1), a, Best, 1.5)
	}
	known := func(now time.Time) ModeInfo {
		info, _ := t.Network(now, prefix(1))
		return info.Modes[slices.IndexFunc(info.Modes, func(m ModeInfo) bool { return m.Mode == a })]
	}
	before := known(start)
	t.Stalled(start, prefix(1), origin, a, true)
	after := known(start)
	if after.Rest <= 0 || after.Trials != before.Trials || after.Gain != before.Gain {
		test.Errorf("before %+v, after %+v", before, after)
	}
	if got := t.Mode(start.Add(after.Rest+1), prefix(1), origin, able); got != a {
		test.Errorf("after its rest: %s", got)
	}
}

// TestAbandoned: trials that measure nothing cost what they cost, and become rare.
func TestAbandoned(test *testing.T) {
	t, trials := newTable(), 0
	t.join(start, prefix(1))
	for range 1000 {
		if c, _, ok := t.Try(start, prefix(1), origin, able, 1e15, 0); ok {
			trials++
			t.Abandoned(prefix(1), c, 1000)
		}
	}
	if info, _ := t.Network(start, prefix(1)); trials == 0 || trials > 20 || info.Tried != float64(1000*trials) {
		test.Errorf("%d trials, %+v", trials, info)
	}
}

// TestMovesToAnotherAS: what a network believes speaks for the AS that originates it now, and no
// longer for the one that did; its own mode stays.
func TestMovesToAnotherAS(test *testing.T) {
	const other, unknown = 64501, 64502
	t := newTable()
	for i := range minVotes {
		t.join(start, prefix(i))
		for range 20 {
			t.mustLearn(test, start, prefix(i), a, Best, 1.5)
		}
	}
	why := func(origin uint32) string {
		mode, why := t.start(origin, able)
		if mode != a {
			test.Errorf("a new network of AS %d begins with %s", origin, mode)
		}
		return why
	}
	if got := why(origin) + ", " + why(other); got != "best in AS 64500, best in other networks" {
		test.Error(got)
	}
	for i := range minVotes {
		if got := t.Mode(start, prefix(i), other, able); got != a {
			test.Errorf("network %d has mode %s in another AS", i, got)
		}
	}
	if got := why(origin) + ", " + why(other); got != "best in other networks, best in AS 64501" {
		test.Error(got)
	}
	t.Mode(start, prefix(0), unknown, able)
	if got := why(other) + ", " + why(unknown); got != "best in other networks, best in other networks" {
		test.Errorf("after one of three has moved again: %s", got)
	}
}

// TestOtherModes: modes that can no longer be used make room for others.
func TestOtherModes(test *testing.T) {
	t := newTable()
	t.join(start, prefix(1))
	for i := range 3 * MaxModes {
		m := Mode(fmt.Sprint("single ", i))
		t.Mode(start, prefix(1), origin, []Mode{Best, m})
		info, _ := t.Network(start, prefix(1))
		if len(info.Modes) > MaxModes || !slices.ContainsFunc(info.Modes, func(i ModeInfo) bool { return i.Mode == m }) {
			test.Fatalf("%s is not among %+v", m, info.Modes)
		}
	}
	for _, r := range t.RecordsOf(t.Prefixes()) {
		if err := r.check(start); err != nil {
			test.Error(err)
		}
	}
}

// TestAges: what is believed of a network that is always active becomes less certain, too.
func TestAges(test *testing.T) {
	t, now := newTable(), start
	t.join(now, prefix(1))
	for range 20 {
		t.mustLearn(test, now, prefix(1), a, Best, 1.5)
	}
	before, _ := t.Network(now, prefix(1))
	for range 3 * 24 * 4 {
		now = now.Add(15 * time.Minute)
		t.Closed(now, prefix(1), originAS(origin), a, Outcome{Bytes: 2 * Bulk, Goodput: 1e6})
	}
	if after, _ := t.Network(now, prefix(1)); after.Modes[0].SD < before.Modes[0].SD+driftPerDay/2 {
		test.Errorf("before %+v, after %+v", before.Modes[0], after.Modes[0])
	}
}

// TestClockSetBack: after the clock was set back by a month, a mode rests no longer than it would
// have, and what is believed ages again.
func TestClockSetBack(test *testing.T) {
	t := newTable()
	t.join(start, prefix(1))
	for range 20 {
		t.mustLearn(test, start, prefix(1), a, Best, 1.5)
	}
	t.Stalled(start, prefix(1), origin, a, true)
	if got := t.Mode(start, prefix(1), origin, able); got == a {
		test.Fatal("stays in a mode without progress")
	}
	now := start.Add(-30 * 24 * time.Hour)
	if got := t.Mode(now, prefix(1), origin, able); got != a {
		test.Errorf("%s, want %s: its rest would end in a month", got, a)
	}
	deviation := func() float64 {
		info, _ := t.Network(now, prefix(1))
		return info.Modes[slices.IndexFunc(info.Modes, func(m ModeInfo) bool { return m.Mode == a })].SD
	}
	t.Closed(now, prefix(1), originAS(origin), a, Outcome{Bytes: Bulk})
	before := deviation()
	now = now.Add(24 * time.Hour)
	t.Closed(now, prefix(1), originAS(origin), a, Outcome{Bytes: Bulk})
	if after := deviation(); after < before+driftPerDay/4 {
		test.Errorf("a standard deviation of %g a day after %g", after, before)
	}
}

// TestApart: what is measured in successive connections counts for less than in the same ones,
// for more if it is of several, and what scatters alone is no loss.
func TestApart(test *testing.T) {
	gain := func(apart int) (mean, lost float64) {
		t := newTable()
		t.join(start, prefix(1))
		if err := t.Learn(start, prefix(1), Pair{a, Best, apart, 1.5, 10 << 20}); err != nil {
			test.Fatal(err)
		}
		n := t.find(prefix(1))
		if err := t.Learn(start, prefix(1), Pair{a, Best, apart, 0.95, 10 << 20}); err != nil {
			test.Fatal(err)
		}
		return float64(n.arms[t.arm(n, a)].mean), n.lost
	}
	inside, lost := gain(0)
	one, none := gain(1)
	several, _ := gain(4)
	if !(0 < one && one < several && several < inside) || none != 0 || lost == 0 {
		test.Errorf("believed gains %.3f inside connections, %.3f by one and %.3f by several apart; lost %g and %g", inside, one, several, lost, none)
	}
	var u Usual
	for range leastUsual {
		if u.Of(a) {
			test.Error("is known too soon")
		}
		u.Add(a, 1e6, time.Second)
	}
	if r := u.Ratio([]float64{1e6, 4e6}); !u.Of(a) || u.Of(b) || math.Abs(r-2) > 1e-9 || u.Lasting() != time.Second {
		test.Errorf("%+v, ratio %g", u, r)
	}
	if u.Add(b, 1e6, time.Second); u.Of(a) || u.Of(b) {
		test.Error("what was in another mode counts")
	}
}
