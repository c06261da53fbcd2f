package labrun

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/experiment/cell"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab/labtest"
	"github.com/tabane/tabane/internal/testkit/accessor"
)

func TestSchedule(t *testing.T) {
	s := labtest.Experiment()
	lists, err := schedule(s, 2, 2, false)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, l := range lists {
		for _, j := range l {
			got = append(got, fmt.Sprintf("%d %s %d", i, j.CellKey, j.trial))
		}
	}
	want := []string{
		"0 slow bulk tcp 0", "0 slow bulk mptcp 0", "0 slow cbr tcp 0", "0 slow cbr mptcp 0",
		"0 slow bulk mptcp 1", "0 slow bulk tcp 1", "0 slow cbr mptcp 1", "0 slow cbr tcp 1",
		"1 fast bulk tcp 0", "1 fast bulk mptcp 0", "1 fast cbr tcp 0", "1 fast cbr mptcp 0",
		"1 fast bulk mptcp 1", "1 fast bulk tcp 1", "1 fast cbr mptcp 1", "1 fast cbr tcp 1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	s.Experiment.Cases[0].Trials, s.Experiment.Cases[0].Duration = 1, time.Hour
	if own, err := schedule(s, 2, 0, false); err != nil || len(own[0]) != 4 || len(own[1]) != 4*s.Experiment.Trials || own[0][0].expected < time.Hour {
		t.Errorf("a case of its own: %d and %d runs, %v", len(own[0]), len(own[1]), err)
	}
	if more, err := schedule(s, 3, 2, true); err != nil || len(more) != 3 || len(more[0]) != 4 || len(more[1]) != 8 || len(more[2]) != 4 || more[0][0].Case != more[2][0].Case {
		t.Errorf("a case in two labs: %v %v", more, err)
	}
	if one, err := schedule(s, 1, 3, true); err != nil || len(one) != 1 || len(one[0]) != 24 {
		t.Errorf("one lab: %v %v", one, err)
	}
}

func TestExpect(t *testing.T) {
	bulk := &scenario.Traffic{Bytes: 1_000_000, Quick: 3 * time.Second}
	cbr := &scenario.Traffic{Rate: 1e6, Duration: 30 * time.Second, Quick: 10 * time.Second}
	of := func(t *scenario.Traffic, phases []result.Phase, quick bool) *cell.Cell {
		limit := t.TimeLimit(quick)
		return &cell.Cell{Traffic: t, Limit: limit, Bytes: t.Bytes + t.Rate.SizeIn(limit), Phases: phases}
	}
	for name, c := range map[string]struct {
		t     *scenario.Traffic
		limit float64
		quick bool
		want  time.Duration
	}{
		"bulk":               {bulk, 1e6, false, 8 * time.Second},
		"quick bulk":         {bulk, 1e6, true, 3 * time.Second},
		"quick bulk is done": {bulk, 8e6, true, time.Second},
		"bulk, no limit":     {bulk, 0, false, 0},
		"cbr":                {cbr, 1e6, false, 30 * time.Second},
		"quick cbr":          {cbr, 1e6, true, 10 * time.Second},
	} {
		phases := []result.Phase{{Limits: result.Limits{Links: c.limit}}}
		if got := expect(of(c.t, phases, c.quick)) - overhead; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	at := func(seconds int, limit float64) result.Phase {
		return result.Phase{At: time.Duration(seconds) * time.Second, Limits: result.Limits{Links: limit}}
	}
	for name, c := range map[string]struct {
		t      *scenario.Traffic
		phases []result.Phase
		want   time.Duration
	}{
		"over before the change": {bulk, []result.Phase{at(0, 1e6), at(8, 1)}, 8 * time.Second},
		"slower after it":        {bulk, []result.Phase{at(0, 1e6), at(4, 0.5e6)}, 12 * time.Second},
		"two changes":            {bulk, []result.Phase{at(0, 1e6), at(4, 0.5e6), at(6, 1e6)}, 9 * time.Second},
		"not known afterwards":   {bulk, []result.Phase{at(0, 1e6), at(4, 0)}, 0},
		"a rate that falls":      {cbr, []result.Phase{at(0, 1e6), at(10, 0.5e6)}, 50 * time.Second},
	} {
		if got := expect(of(c.t, c.phases, false)) - overhead; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestRemaining(t *testing.T) {
	now := time.Unix(1000, 0)
	j := func(s int) job { return job{expected: time.Duration(s) * time.Second} }
	left := [][]job{{j(10), j(10)}, {j(15)}, nil}
	for name, c := range map[string]struct {
		started []time.Time
		want    time.Duration
	}{
		"not begun":            {make([]time.Time, 3), 20 * time.Second},
		"first half done":      {[]time.Time{now.Add(-5 * time.Second), {}, {}}, 15 * time.Second},
		"first late":           {[]time.Time{now.Add(-time.Hour), {}, {}}, 15 * time.Second},
		"nothing but lateness": {[]time.Time{now.Add(-time.Hour), now.Add(-time.Hour), {}}, 10 * time.Second},
	} {
		if got := remaining(left, c.started, now); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestLabNamesFor(t *testing.T) {
	if got := labNamesFor("x", 1); !slices.Equal(got, []string{"x"}) {
		t.Error(got)
	}
	if got := labNamesFor("x", 3); !slices.Equal(got, []string{"x.1", "x.2", "x.3"}) {
		t.Error(got)
	}
}

func cellOf(t *testing.T, s *scenario.Spec, k result.CellKey, quick bool) *cell.Cell {
	t.Helper()
	c, err := cell.New(s, quick).Cell(k)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestFetchArguments(t *testing.T) {
	s := labtest.Experiment()
	for want, c := range map[string]struct {
		traffic, transport string
		quick              bool
	}{
		"fetch --progress json --interval 100ms http://b:8080/bytes/300000":                              {"bulk", "tcp", false},
		"fetch --progress json --interval 100ms --mptcp --limit 200ms http://b:8080/bytes/300000":        {"bulk", "mptcp", true},
		"fetch --progress json --interval 100ms http://b:8080/cbr?duration=300ms&rate=2Mbit%2Fs":         {"cbr", "tcp", false},
		"fetch --progress json --interval 100ms --mptcp http://b:8080/cbr?duration=200ms&rate=2Mbit%2Fs": {"cbr", "mptcp", true},
	} {
		of := cellOf(t, s, result.CellKey{Case: "slow", Traffic: c.traffic, Transport: c.transport}, c.quick)
		if got := strings.Join(fetchArguments(s, of), " "); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	s.Nodes["b"].Serve.Port = 80
	last := func() string {
		args := fetchArguments(s, cellOf(t, s, result.CellKey{Case: "slow", Traffic: "bulk", Transport: "tcp"}, false))
		return strings.Join(args[len(args)-3:], " ")
	}
	if got := last(); got != "--interval 100ms http://b/bytes/300000" {
		t.Error(got)
	}
	s.Experiment.Transports["tcp"].HTTP3 = true
	if got := strings.Join(fetchArguments(s, cellOf(t, s, result.CellKey{Case: "slow", Traffic: "bulk", Transport: "tcp"}, true)), " "); got != "http3 fetch --interval 100ms --limit 200ms https://b:443/bytes/300000" {
		t.Error(got)
	}
	s.Experiment.Transports["tcp"].HTTP3 = false
	s.Experiment.Cases[0].Duration = time.Minute
	if got := last(); got != "--limit 1m0s http://b/bytes/1099511627776" {
		t.Error("a case of its own: ", got)
	}
}

func TestReadLines(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"report":       {`{"sample":{"at_ns":0,"bytes":7}}` + "\n" + `{"report":{"bytes":7}}` + "\n", ""},
		"no report":    {`{"sample":{"at_ns":0,"bytes":7}}` + "\n", "without a report"},
		"nothing":      {"", "without a report"},
		"garbage":      {"hello\n", "not understood"},
		"after report": {`{"report":{"bytes":7}}` + "\n" + `{"report":{"bytes":7}}` + "\n", "continues after its report"},
		"cut":          {`{"report":{"bytes"`, "not understood"},
	} {
		t.Run(name, func(t *testing.T) {
			var samples int64
			r, err := readLines(strings.NewReader(c.in), func() {}, func(s traffic.Sample) { samples += s.Bytes })
			if c.want == "" {
				if err != nil || r.Bytes != 7 || samples != 7 {
					t.Errorf("got %+v, %d, %v", r, samples, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func FuzzReadLines(f *testing.F) {
	f.Add([]byte(`{"sample":{"at_ns":0,"bytes":7}}` + "\n" + `{"report":{"bytes":7}}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := readLines(bytes.NewReader(b), func() {}, func(traffic.Sample) {})
		accessor.Call(t, r)
		if err != nil && r.Bytes != 0 {
			t.Errorf("a report with error %v", err)
		}
	})
}
