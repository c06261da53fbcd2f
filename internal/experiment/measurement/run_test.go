package measurement

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/analysis/measure"
	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/kernel/database"
	"github.com/tabane/tabane/internal/testkit/accessor"
)

// writer is the variable with the directory in which a child process stores trials until it is
// killed.
const writer = "TABANE_TEST_STORE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writer); dir != "" {
		if err := write(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// write continues the measurement in dir, and prints a line for each trial that is stored.
func write(dir string) error {
	s, err := Open(context.Background(), dir)
	if err != nil {
		return err
	}
	fmt.Println("open")
	_, err = Run(context.Background(), RunOptions{Store: s, Measurer: fake{}, Progress: func(p Progress) {
		if p.Row != nil {
			fmt.Println(p.Done)
		}
	}})
	return errors.Join(err, s.Close())
}

func plan(trials int, modes ...string) Plan {
	return Plan{Name: "isp-e", Server: "http://server/", Modes: modes, Trials: trials, Load: measure.Load{Time: time.Second}, Whole: true, Seed: 1}
}

// fake is a Measurer whose modes have constant goodputs.
type fake struct {
	// do, if set, is asked instead.
	do func(mode string) (measure.Trial, Conditions, error)
}

func (f fake) Trial(_ context.Context, mode string) (measure.Trial, Conditions, error) {
	if f.do != nil {
		return f.do(mode)
	}
	return trial(50e6), conditions("192.0.2.1"), nil
}

func (f fake) Paired(_ context.Context, orders [][2]int) ([][2]measure.Trial, Conditions, error) {
	pairs := make([][2]measure.Trial, len(orders))
	for i := range pairs {
		pairs[i] = [2]measure.Trial{trial(50e6 + float64(i)), trial(75e6)}
	}
	return pairs, conditions("192.0.2.1"), nil
}

func trial(bps float64) measure.Trial {
	l := measure.Latency{Count: 10, P50: 20 * time.Millisecond, P95: 50 * time.Millisecond, RPM: 2500}
	return measure.Trial{Bytes: int64(bps / 8), Duration: time.Second, GoodputBps: bps, Series: []int64{1, 0, int64(bps / 8)}, Idle: l, Loaded: l}
}

func conditions(client string) Conditions {
	return Conditions{ClientVersion: "1", ServerKernel: "6.18", Congestion: "cubic", Client: PrefixOf(netip.MustParseAddr(client))}
}

func create(t testing.TB, p Plan) (*Store, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	s, err := Create(context.Background(), dir, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, dir
}

func rowsOf(t testing.TB, s *Store) []Row {
	t.Helper()
	rows, err := s.Rows(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestKill: a measurement is killed at 100 points, and each time no trial is lost that was
// reported, and at most one that was not is there. In the end, each block has each mode once.
func TestKill(t *testing.T) {
	s, dir := create(t, plan(1000, "tcp", "multipath", "parallel:3"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(37, 1))
	reported := 0
	for range 100 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), writer+"="+dir)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		child.Stderr = os.Stderr
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		// The kill comes somewhere within the trial after so many lines.
		lines := random.IntN(12)
		var text bytes.Buffer
		b := make([]byte, 1)
		for n := 0; n <= lines; {
			if _, err := out.Read(b); err != nil {
				t.Fatal(err)
			}
			text.Write(b)
			if b[0] == '\n' {
				n++
			}
		}
		time.Sleep(time.Duration(random.IntN(1000)) * time.Microsecond)
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if _, err := text.ReadFrom(out); err != nil {
			t.Fatal(err)
		}
		_ = child.Wait() // it was killed
		all := strings.Fields(text.String()[:strings.LastIndexByte(text.String(), '\n')])
		if last := all[len(all)-1]; last != "open" {
			if reported, err = strconv.Atoi(last); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Open(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		rows := rowsOf(t, s)
		if len(rows) < reported || len(rows) > reported+1 {
			t.Fatalf("%d trials were reported, %d are stored", reported, len(rows))
		}
		reported = len(rows)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	rows := rowsOf(t, s)
	p := s.Plan()
	for i, r := range rows {
		if r.Block != i/3 || r.Mode != p.Modes[p.Order(r.Block)[i%3]] || r.Position != i%3 || r.Series[2] != r.Bytes || r.Client.String() != "192.0.2.0/24" {
			t.Fatalf("trial %d: %+v", i, r)
		}
	}
	if len(rows) < 200 {
		t.Errorf("%d trials in 100 runs", len(rows))
	}
}

// TestRetry: an attempt that fails is stored and repeated; one that cannot be repeated ends the
// run; and a further run continues.
func TestRetry(t *testing.T) {
	s, _ := create(t, plan(2, "tcp", "multipath"))
	failures := []error{errors.New("no answer"), errors.New("no answer"), nil, fmt.Errorf("%w: wrong key", ErrPermanent)}
	var waits []time.Duration
	o := RunOptions{Store: s, Wait: func(_ context.Context, d time.Duration) error { waits = append(waits, d); return nil }, Measurer: fake{do: func(string) (measure.Trial, Conditions, error) {
		if len(failures) == 0 {
			return trial(1e6), conditions("192.0.2.1"), nil
		}
		err := failures[0]
		failures = failures[1:]
		return trial(1e6), conditions("192.0.2.1"), err
	}}}
	if _, err := Run(t.Context(), o); !errors.Is(err, ErrPermanent) || !strings.Contains(err.Error(), "measure \"") {
		t.Errorf("got %v", err)
	}
	if rows := rowsOf(t, s); len(rows) != 4 || rows[0].Failed != "no answer" || rows[2].Failed != "" || !slices.Equal(waits, []time.Duration{time.Second, 2 * time.Second}) {
		t.Errorf("waited %v, stored %+v", waits, rows)
	}
	if stop, err := Run(t.Context(), o); err != nil || stop != AllDone {
		t.Errorf("got %q, %v", stop, err)
	}
	if blocks := s.Plan().Complete(rowsOf(t, s)); len(blocks) != 2 {
		t.Errorf("%d blocks", len(blocks))
	}
	always := RunOptions{Store: s, Wait: o.Wait, Measurer: fake{do: func(string) (measure.Trial, Conditions, error) {
		return measure.Trial{}, Conditions{}, errors.New("gone")
	}}}
	if err := s.Extend(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), always); err == nil || !strings.HasSuffix(err.Error(), ": gone") {
		t.Errorf("got %v", err)
	}
}

// TestTwoRuns: a run into a directory into which another one measures is refused before its first
// trial.
func TestTwoRuns(t *testing.T) {
	s, dir := create(t, plan(1, "tcp", "multipath"))
	again, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	second := func() error {
		_, err := Run(t.Context(), RunOptions{Store: again, Measurer: fake{do: func(string) (measure.Trial, Conditions, error) {
			t.Error("it measures")
			return trial(1e6), conditions("192.0.2.1"), nil
		}}})
		return err
	}
	_, err = Run(t.Context(), RunOptions{Store: s, Measurer: fake{do: func(string) (measure.Trial, Conditions, error) {
		if err := second(); !errors.Is(err, database.ErrLocked) {
			t.Errorf("got %v", err)
		}
		return trial(1e6), conditions("192.0.2.1"), nil
	}}})
	if err != nil {
		t.Error(err)
	}
	if err := second(); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// TestAddressChanges: a block in which the client's network changes is made again.
func TestAddressChanges(t *testing.T) {
	s, _ := create(t, plan(2, "tcp", "multipath"))
	n := 0
	notes := 0
	_, err := Run(t.Context(), RunOptions{Store: s, Progress: func(p Progress) {
		if p.Note != "" {
			notes++
		}
	}, Measurer: fake{do: func(string) (measure.Trial, Conditions, error) {
		n++
		if n == 1 {
			return trial(1e6), conditions("198.51.100.7"), nil
		}
		return trial(2e6), conditions("192.0.2.1"), nil
	}}})
	if err != nil || n != 6 || notes != 1 {
		t.Errorf("%d trials, %d notes, %v", n, notes, err)
	}
	rows := rowsOf(t, s)
	if blocks := s.Plan().Complete(rows); len(blocks) != 2 || blocks[0][0].GoodputBps != 2e6 {
		t.Errorf("got %+v", blocks)
	}
	a, err := Analyze(s.Plan(), rows)
	if err != nil || len(a.Notes) != 1 || !strings.Contains(a.Notes[0], "198.51.100.0/24, then 192.0.2.0/24") {
		t.Errorf("got %q, %v", a.Notes, err)
	}
}

// TestAddressFlaps: a run ends if the client's network changes in each attempt at a block, and
// another one continues.
func TestAddressFlaps(t *testing.T) {
	s, _ := create(t, plan(1, "tcp", "multipath"))
	n, flaps := 0, true
	o := RunOptions{Store: s, Measurer: fake{do: func(string) (measure.Trial, Conditions, error) {
		if n++; n > 100 {
			t.Fatal("it goes on")
		}
		if flaps && n%2 == 0 {
			return trial(1e6), conditions("198.51.100.7"), nil
		}
		return trial(2e6), conditions("192.0.2.1"), nil
	}}}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "measure block 1: the client's address changed") || n != 2*(repeats+1) {
		t.Errorf("%d trials, %v", n, err)
	}
	flaps = false
	if stop, err := Run(t.Context(), o); err != nil || stop != AllDone {
		t.Errorf("%q, %v", stop, err)
	}
}

// TestLongSeries: a trial that ends after its time leaves a store that can be read.
func TestLongSeries(t *testing.T) {
	s, _ := create(t, plan(1, "tcp", "multipath"))
	long := trial(1e6)
	long.Series = make([]int64, maxSeries+1)
	if err := s.Add(t.Context(), Row{Mode: "tcp", Trial: long, Conditions: conditions("192.0.2.1")}); err != nil {
		t.Fatal(err)
	}
	if rows := rowsOf(t, s); len(rows) != 1 || len(rows[0].Series) != maxSeries {
		t.Errorf("%d rows", len(rows))
	}
}

func TestLimitsOfARun(t *testing.T) {
	s, _ := create(t, plan(10, "tcp", "multipath"))
	o := RunOptions{Store: s, Measurer: fake{}, MaxBytes: 50e6 / 8 * 5}
	if stop, err := Run(t.Context(), o); err != nil || stop != ByteLimit {
		t.Errorf("got %q, %v", stop, err)
	}
	if n := len(rowsOf(t, s)); n != 5 {
		t.Errorf("%d trials", n)
	}
	o.MaxBytes, o.MaxTime = 0, time.Nanosecond
	if stop, err := Run(t.Context(), o); err != nil || stop != TimeLimit {
		t.Errorf("got %q, %v", stop, err)
	}
}

// TestPairs: the pairs of one connection are stored together, and analyzed by Student's t.
func TestPairs(t *testing.T) {
	p := plan(7, "multipath-best", "multipath")
	p.Paired, p.Load.Time = true, measure.LeastPhase
	s, _ := create(t, p)
	var done []int
	stop, err := Run(t.Context(), RunOptions{Store: s, Measurer: fake{}, Progress: func(p Progress) {
		if p.Row != nil {
			done = append(done, p.Done)
		}
	}})
	if err != nil || stop != AllDone {
		t.Fatalf("got %q, %v", stop, err)
	}
	if want := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}; !slices.Equal(done, want) {
		t.Errorf("trials are counted as %v", done)
	}
	a, err := Analyze(p, rowsOf(t, s))
	if err != nil || a.Blocks != 7 || a.Modes[1].Verdict != Better || math.Abs(a.Modes[1].Ratio.Value-1.5) > 1e-6 || a.Modes[1].Ratio.Method != "t" {
		t.Errorf("got %+v, %v", a, err)
	}
}

// TestOrderOfPairs: two pairs have both orders, so that a drift of the network cancels. Blocks are
// independent of each other.
func TestOrderOfPairs(t *testing.T) {
	p := plan(200, "multipath-best", "multipath")
	same := 0
	for block := 0; block < p.Trials; block += 2 {
		if slices.Equal(p.Order(block), p.Order(block+1)) {
			same++
		}
	}
	if same < 30 || same > 70 {
		t.Errorf("%d of 100 blocks have the order of the one before", same)
	}
	p.Paired = true
	first := 0
	for block := 0; block < p.Trials; block += 2 {
		if slices.Equal(p.Order(block), p.Order(block+1)) {
			t.Errorf("pairs %d and %d have the same order", block, block+1)
		}
		first += p.Order(block)[0]
	}
	if first < 30 || first > 70 {
		t.Errorf("%d of 100 begin with the second mode", first)
	}
}

// TestPairsOfAConnection: a connection has as many pairs as fit into its time, and at least one.
func TestPairsOfAConnection(t *testing.T) {
	for _, tt := range []struct {
		phase        time.Duration
		trials, want int
	}{{8 * time.Second, 10, 5}, {8 * time.Second, 3, 3}, {4 * time.Second, 20, 11}, {measure.LeastPhase, MaxTrials, 24}, {time.Minute, 10, 1}} {
		p := plan(tt.trials, "multipath-best", "multipath")
		p.Paired, p.Load.Time = true, tt.phase
		if got := p.Pairs(); got != tt.want {
			t.Errorf("%d pairs of %s: a connection has %d, want %d", tt.trials, tt.phase, got, tt.want)
		}
	}
}

// TestClockIsSet: a clock that is set during a trial changes no result, and is said once while it
// is measured, and in the analysis.
func TestClockIsSet(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour, time.Second} {
		s, _ := create(t, plan(2, "tcp", "multipath"))
		var set time.Duration
		n := 0
		var notes []string
		_, err := Run(t.Context(), RunOptions{
			Store: s, Clock: func() time.Time { return time.Now().Add(set) },
			Progress: func(p Progress) {
				if p.Note != "" {
					notes = append(notes, p.Note)
				}
			},
			Measurer: fake{do: func(string) (measure.Trial, Conditions, error) {
				if n++; n == 3 {
					set = step
				}
				return trial(1e6), conditions("192.0.2.1"), nil
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		rows := rowsOf(t, s)
		a, err := Analyze(s.Plan(), rows)
		if err != nil || a.Blocks != 2 || a.Failed != 0 {
			t.Fatalf("%d blocks, %d failed, %v", a.Blocks, a.Failed, err)
		}
		if step < clockStep && step > 0 {
			if len(notes)+len(a.Notes) != 0 {
				t.Errorf("%s: %q, %q", step, notes, a.Notes)
			}
			continue
		}
		said := "the clock was set by " + step.String() // it takes some microseconds
		if len(notes) != 1 || !strings.HasPrefix(notes[0], said) || len(a.Notes) != 1 || !strings.HasPrefix(a.Notes[0], "the clock was set by ") || !strings.HasSuffix(a.Notes[0], " in block 2") {
			t.Errorf("%s: %q, %q", step, notes, a.Notes)
		}
		if got := rows[2].ClockStep - step; got.Abs() > time.Second || rows[2].Duration != time.Second {
			t.Errorf("%s: %+v", step, rows[2])
		}
	}
}

// TestStores: what is not a store is refused with its reason, and nothing of it is changed.
func TestStores(t *testing.T) {
	p := plan(2, "tcp", "multipath")
	s, dir := create(t, p)
	if _, err := Create(t.Context(), dir, p); !errors.Is(err, ErrExists) {
		t.Errorf("made twice: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	set := func(statement string) string {
		other := filepath.Join(t.TempDir(), "other")
		if err := os.MkdirAll(other, 0o755); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(dir, File))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(other, File), b, 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := sql.Open("sqlite", filepath.Join(other, File))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
		return other
	}
	torn := t.TempDir()
	if err := os.WriteFile(filepath.Join(torn, File), []byte("not a database, but long enough to be one, if it were not for its first sixteen bytes ..........."), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		dir  string
		want error
	}{
		"version": {set("PRAGMA user_version = 2"), database.ErrVersion},
		"foreign": {set("PRAGMA application_id = 7"), database.ErrForeign},
		"plan":    {set(`UPDATE meta SET plan = '{"modes":["tcp","a/b"],"trials":1,"load":{"Time":1}}'`), database.ErrForeign},
		"torn":    {torn, database.ErrForeign},
		"none":    {t.TempDir(), fs.ErrNotExist},
	} {
		if _, err := Open(t.Context(), tt.dir); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, statement := range map[string]string{
		"series":  "INSERT INTO trials VALUES (1, 0, 0, 'tcp', 0, 1, NULL, '{\"goodput_bps\":1}', '{}', x'ff')",
		"goodput": "INSERT INTO trials VALUES (1, 0, 0, 'tcp', 0, 1, NULL, '{\"goodput_bps\":-1}', '{}', x'')",
		"trial":   "INSERT INTO trials VALUES (1, 0, 0, 'tcp', 0, 1, NULL, 'x', '{}', x'')",
	} {
		s, err := Open(t.Context(), set(statement))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Rows(t.Context()); !errors.Is(err, database.ErrForeign) {
			t.Errorf("%s: %v", name, err)
		}
		s.Close()
	}
}

// TestFullDisk: the trial that cannot be stored ends the run, and the others remain.
func TestFullDisk(t *testing.T) {
	s, dir := create(t, plan(100, "tcp", "multipath"))
	pages := 0
	if err := s.db.QueryRow("PRAGMA page_count").Scan(&pages); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.Exec(fmt.Sprintf("PRAGMA max_page_count = %d", pages+3)); err != nil {
		t.Fatal(err)
	}
	stored := 0
	_, err := Run(t.Context(), RunOptions{Store: s, Measurer: fake{}, Progress: func(p Progress) { stored = p.Done }})
	if !errors.Is(err, database.ErrFull) {
		t.Fatalf("got %v", err)
	}
	s.Close()
	again, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if n := len(rowsOf(t, again)); n != stored || n == 0 {
		t.Errorf("%d trials, %d were reported", n, stored)
	}
}

// simulated returns the rows of a measurement whose modes have these ratios to the first.
func simulated(p Plan, ratios []float64, between, within float64, r *rand.Rand) (rows []Row) {
	for block := range p.Trials {
		common := 50e6 * math.Exp(between*r.NormFloat64())
		for i, mode := range p.Modes {
			rows = append(rows, Row{Block: block, Mode: mode, Trial: trial(common * ratios[i] * math.Exp(within*r.NormFloat64()))})
		}
	}
	return rows
}

// TestStopsEarly: of 2,000 measurements that end when fewer trials decide, 95 +- 2 % of the
// intervals still have the true ratio, as docs/measure.md says, and the verdict is hardly ever the
// opposite of the truth.
func TestStopsEarly(t *testing.T) {
	const measurements = 2000
	least, most := 1.0, 0.0
	for _, tt := range []struct {
		trials int
		ratio  float64
		most   float64 // blocks in the mean
	}{{24, 0.92, 24}, {24, 1.08, 24}, {60, 1.12, 24}, {24, 1.5, 9}} {
		p := plan(tt.trials, "tcp", "multipath")
		p.Whole = false
		r := rand.New(rand.NewPCG(37, uint64(100*tt.ratio)))
		covered, opposite, blocks := 0, 0, 0
		for range measurements {
			rows := simulated(p, []float64{1, tt.ratio}, 0.3, 0.06, r)
			n := 1
			for n < p.Trials && !p.decided(rows[:2*n]) {
				n++
			}
			blocks += n
			a, err := Analyze(p, rows[:2*n])
			if err != nil {
				t.Fatal(err)
			}
			m := a.Modes[1]
			if m.Ratio.Low <= tt.ratio && tt.ratio <= m.Ratio.High {
				covered++
			}
			if tt.ratio > 1 && m.Verdict == Worse || tt.ratio < 1 && m.Verdict == Better {
				opposite++
			}
		}
		share, mean := float64(covered)/measurements, float64(blocks)/measurements
		t.Logf("%+v: %.2f %% covered, %.1f blocks", tt, 100*share, mean)
		least, most = min(least, share), max(most, share)
		if share < 0.93 || share > 0.97 || opposite > measurements/200 || mean > tt.most {
			t.Errorf("%+v: %.2f %% covered, %d opposite verdicts, %.1f blocks", tt, 100*share, opposite, mean)
		}
	}
	if said := fmt.Sprintf("about 95 %% have the true ratio (%.1f to %.1f %%, `TestStopsEarly`)", 100*least, 100*most); !strings.Contains(page(t), said) {
		t.Errorf("docs/measure.md does not say %q", said)
	}
}

// page returns docs/measure.md.
func page(t *testing.T) string {
	b, err := os.ReadFile("../../../docs/measure.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestVerdicts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, tt := range []struct {
		trials   int
		ratio    float64
		within   float64
		want     Verdict
		headline string
	}{
		{10, 1.5, 0.05, Better, "multipath is better than tcp by "},
		{10, 0.7, 0.05, Worse, "BGP's best path was already best: multipath is worse than tcp by "},
		{24, 1, 0.01, Equal, "BGP's best path was already best: nothing is better by 5 % or more; no difference that matters: multipath ("},
		{10, 1.08, 0.3, NotShown, "Not shown with 10 trials: multipath ("},
		{5, 1.5, 0.01, TooFew, "Too few trials: 5 trials, and 6 are needed."},
		{0, 1, 0, TooFew, "There is no complete block of trials yet."},
	} {
		p := plan(max(1, tt.trials), "tcp", "multipath")
		rows := simulated(p, []float64{1, tt.ratio}, 0.2, tt.within, r)
		a, err := Analyze(p, rows[:2*tt.trials])
		if err != nil {
			t.Errorf("%+v: %v", tt, err)
			continue
		}
		if a.Modes[1].Verdict != tt.want || !strings.HasPrefix(a.Headline(), tt.headline) {
			t.Errorf("%+v: got %q, %q", tt, a.Modes[1].Words(), a.Headline())
		}
	}
}

// TestYardstick: several TCP connections, about which there is no verdict, neither make that of
// another mode harder nor keep a run from its end.
func TestYardstick(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	p := plan(8, "tcp", "multipath", "parallel:3", "parallel:6")
	p.Whole = false
	rows := simulated(p, []float64{1, 1.9, 1, 1.05}, 0.01, 0.02, r)
	a, err := Analyze(p, rows[:4*6])
	if err != nil {
		t.Fatal(err)
	}
	if m := a.Modes[1]; m.Verdict != Better || m.Corrected != m.Ratio.P {
		t.Errorf("of 6 blocks, multipath is %q, with p %v, corrected %v", m.Words(), m.Ratio.P, m.Corrected)
	}
	for _, m := range a.Modes[2:] {
		if m.Verdict != Yardstick || m.Corrected != m.Ratio.P {
			t.Errorf("mode %q is %q, with p %v, corrected %v", m.Mode, m.Words(), m.Ratio.P, m.Corrected)
		}
	}
	if !p.decided(rows) {
		t.Error("after 8 blocks the run goes on")
	}
}

// interval returns a ratio whose test agrees with its interval.
func interval(value, low, high float64) stat.MedianRatio {
	r := stat.MedianRatio{Ratio: stat.Ratio{Value: value, Low: low, High: high}, P: 0.5}
	if low > 1 || high < 1 {
		r.P = 0.001
	}
	return r
}

func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		ratio     stat.MedianRatio
		corrected float64
		want      Verdict
		words     string
	}{
		{interval(1.66, 1.48, 1.89), 0.01, Better, "better by 66 %"},
		{interval(0.61, 0.48, 0.70), 0.01, Worse, "worse by 39 %"},
		{interval(0.969, 0.887, 0.986), 0.01, Worse, "worse by 3 %"},
		{interval(1.004, 1.001, 1.06), 0.01, Better, "better by 0.4 %"},
		{interval(0.97, 0.955, 0.99), 0.001, Equal, "no difference that matters"}, // though it is significant
		{interval(1, 0.95, 1.05), 1, Equal, "no difference that matters"},
		{interval(1.2, 0.99, 1.5), 0.06, NotShown, "not shown with this many trials"},
		{interval(1, 0.94, 1.04), 1, NotShown, "not shown with this many trials"},
		{interval(1.2, 1.01, 1.5), 0.06, NotShown, "not shown with this many trials"}, // for so many modes
	} {
		m := ModeResult{Ratio: tt.ratio, Known: true, Verdict: judge(tt.ratio, tt.corrected)}
		if m.Verdict != tt.want || m.Words() != tt.words {
			t.Errorf("%+v: got %q, %q", tt.ratio, m.Verdict, m.Words())
		}
	}
}

// TestHeadline: the headline is of the modes in which a server can deliver. Several TCP connections
// are never its subject, whatever their goodput.
func TestHeadline(t *testing.T) {
	for _, tt := range []struct {
		modes  []string
		ratios []float64
		want   string
	}{
		{[]string{"tcp", "multipath", "parallel:12"}, []float64{1, 0.6, 1.4}, "BGP's best path was already best: multipath is worse than tcp by 40 % (40 to 40 %)."},
		{[]string{"tcp", "parallel:12", "multipath"}, []float64{1, 3, 1.5}, "multipath is better than tcp by 50 % (50 to 50 %)."},
		{[]string{"tcp", "multipath", "parallel:3"}, []float64{1, 1.01, 1.4}, "BGP's best path was already best: nothing is better by 5 % or more; no difference that matters: multipath (+1 to +1 %)."},
		{[]string{"tcp", "parallel:3", "parallel:6"}, []float64{1, 2, 3}, "No verdict: only several TCP connections were measured, which are a yardstick. Measure multipath or single:PEER."},
		{[]string{"tcp", "multipath", "single:b"}, []float64{1, 1.5, 2}, "Best is single:b: single:b is better than tcp by 100 % (100 to 100 %), multipath by 50 % (50 to 50 %)."},
		{[]string{"tcp", "multipath", "single:b"}, []float64{1, 2, 2}, "multipath is better than tcp by 100 % (100 to 100 %), single:b by 100 % (100 to 100 %), and which of them is best is not shown."},
		{[]string{"tcp", "multipath", "single:b"}, []float64{1, 0.5, 2}, "single:b is better than tcp by 100 % (100 to 100 %); multipath is worse than tcp by 50 % (50 to 50 %)."},
		{[]string{"multipath-best", "multipath"}, []float64{1, 0.5}, "multipath-best was already best: multipath is worse than multipath-best by 50 % (50 to 50 %)."},
		{
			[]string{"tcp", "single:a", "single:b", "single:c", "single:d", "single:e"},
			[]float64{1, 0.5, 0.5, 0.5, 0.5, 0.5},
			"BGP's best path was already best: single:a is worse than tcp by 50 % (50 to 50 %), single:b by 50 % (50 to 50 %), single:c by 50 % (50 to 50 %), single:d by 50 % (50 to 50 %), and 1 more.",
		},
	} {
		p := plan(10, tt.modes...)
		a, err := Analyze(p, simulated(p, tt.ratios, 0.2, 0, rand.New(rand.NewPCG(1, 2))))
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Headline(); got != tt.want {
			t.Errorf("%v %v: got\n%s\nwant\n%s", tt.modes, tt.ratios, got, tt.want)
		}
		for i, m := range a.Modes {
			if yardstick := strings.HasPrefix(m.Mode, "parallel:"); (m.Verdict == Yardstick) != yardstick || i > 0 && !m.Known {
				t.Errorf("%v: %s is %q", tt.modes, m.Mode, m.Verdict)
			}
		}
	}
	// A mode that is not shown is named beside one that is.
	a := Analysis{Plan: plan(10, "tcp", "multipath", "single:b"), Blocks: 10, Modes: []ModeResult{
		{Mode: "tcp"},
		{Mode: "multipath", Known: true, Verdict: NotShown, Ratio: interval(1.05, 0.9, 1.2)},
		{Mode: "single:b", Known: true, Verdict: Worse, Ratio: interval(0.5, 0.4, 0.6)},
	}}
	if got, want := a.Headline(), "Not shown with 10 trials: multipath (-10 to +20 %); about 87 would show a difference of 5 %; --paired needs far fewer where it is possible; single:b is worse than tcp by 50 % (40 to 60 %)."; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestExports(t *testing.T) {
	p := plan(2, "tcp", "multipath")
	p.Name = "=1+1"
	rows := simulated(p, []float64{1, 2}, 0, 0, rand.New(rand.NewPCG(1, 1)))
	rows = append(rows, Row{Mode: "tcp", Failed: "gone"})
	var b bytes.Buffer
	if err := WriteCSV(&b, p, rows); err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(&b).ReadAll()
	if err != nil || len(lines) != 6 || lines[1][0] != "'=1+1" || lines[1][6] != "50000000" || lines[2][6] != "100000000" || lines[5][len(lines[5])-1] != "gone" {
		t.Errorf("got %q, %v", lines, err)
	}
	b.Reset()
	if err := WriteJSON(&b, p, rows); err != nil {
		t.Fatal(err)
	}
	var read struct {
		Trials []struct {
			Mode   string
			Series []int64 `json:"bytes_per_100ms"`
		}
	}
	if err := json.Unmarshal(b.Bytes(), &read); err != nil || len(read.Trials) != 5 || read.Trials[1].Mode != "multipath" || read.Trials[1].Series[2] != 12500000 {
		t.Errorf("got %+v, %v", read, err)
	}
	got, err := Result(p, rows)
	if err != nil || len(got.Runs) != 5 || len(got.Summary) == 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestPlanCheck(t *testing.T) {
	good := plan(1, "tcp", "multipath")
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Plan){
		"one mode":    func(p *Plan) { p.Modes = []string{"tcp"} },
		"twice":       func(p *Plan) { p.Modes = []string{"tcp", "tcp"} },
		"mode":        func(p *Plan) { p.Modes = []string{"tcp", "parallel:0"} },
		"no trial":    func(p *Plan) { p.Trials = 0 },
		"many trials": func(p *Plan) { p.Trials = MaxTrials + 1 },
		"no load":     func(p *Plan) { p.Load = measure.Load{} },
		"objects":     func(p *Plan) { p.Load = measure.Load{Objects: 3, Time: 1} },
		"stream":      func(p *Plan) { p.Load = measure.Load{Rate: unit.MbitPerSecond} },
		"negative":    func(p *Plan) { p.Load.Bytes = -1 },
		"parallel": func(p *Plan) {
			p.Modes[1], p.Load = "parallel:3", measure.Load{Objects: 1, Bytes: 1}
		},
		"paired":        func(p *Plan) { p.Paired, p.Modes = true, []string{"tcp", "multipath", "a"} },
		"paired bytes":  func(p *Plan) { p.Paired, p.Load.Bytes = true, 1 },
		"paired, short": func(p *Plan) { p.Paired, p.Load.Time = true, measure.LeastPhase-1 },
	} {
		p := plan(1, "tcp", "multipath")
		change(&p)
		if err := p.Check(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// FuzzDecodePlan: a plan that is accepted can be measured and analyzed.
func FuzzDecodePlan(f *testing.F) {
	b, err := json.Marshal(plan(3, "tcp", "multipath"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, []byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, text, series []byte) {
		if s, err := decodeSeries(series); err == nil && !bytes.Equal(encodeSeries(s), series) {
			// Encodings that are longer than needed are read as well.
			if again, err := decodeSeries(encodeSeries(s)); err != nil || !slices.Equal(again, s) {
				t.Errorf("%x: %v, %v", series, again, err)
			}
		}
		p, err := decodePlan(text)
		if err != nil {
			return
		}
		accessor.Call(t, p)
		order := slices.Sorted(slices.Values(p.Order(0)))
		if len(order) != len(p.Modes) || order[0] != 0 || order[len(order)-1] != len(order)-1 {
			t.Errorf("order %v", order)
		}
		if _, err := Analyze(p, nil); err != nil {
			t.Error(err)
		}
	})
}
