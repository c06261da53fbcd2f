package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/testkit/accessor"
)

func small() Result {
	tcp, mptcp := CellKey{"1.3", "bi", "tcp"}, CellKey{"1.3", "bi", "mptcp-epe"}
	runs := []Run{
		{tcp, 0, map[string]float64{Goodput: 14_100_000, LimitRate: 14_147_952.443857332, Bytes: 1e8}, nil},
		{tcp, 1, map[string]float64{Goodput: 14_000_000, LimitRate: 14_147_952.443857332, Bytes: 1e8}, nil},
		{mptcp, 0, map[string]float64{Goodput: 41_000_000.5}, map[string]string{NoteSeries: "series/1.csv"}},
		{mptcp, 1, map[string]float64{Goodput: 12}, map[string]string{NoteError: "connection <reset>"}},
	}
	cells, err := Summarize(runs)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return Result{Schema: Schema, Scenario: "epe-steady", Backend: "lab", Seconds: 73.25, Host: Host{"6.18.0", 2, "abc"}, Runs: runs, Summary: cells,
		Expect: []Verdict{{"fills the links", "w", "g", true}}}
}

func TestResultIsWrittenAsInTheContract(t *testing.T) {
	r := small()
	r.Runs, r.Summary = r.Runs[2:3], r.Summary[:1]
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"schema":1,"scenario":"epe-steady","backend":"lab","seconds":73.25,"host":{"kernel":"6.18.0","cpus":2,"commit":"abc"},` +
		`"runs":[{"case":"1.3","traffic":"bi","transport":"mptcp-epe","trial":0,"goodput_bps":41000000.5,"series":"series/1.csv"}],` +
		`"summary":[{"case":"1.3","traffic":"bi","transport":"tcp","metric":"bytes","n":2,"min":100000000,"q1":100000000,"median":100000000,` +
		`"q3":100000000,"max":100000000,"mean":100000000,"ci95":0}],` +
		`"expect":[{"name":"fills the links","want":"w","got":"g","holds":true}]}`
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("result.json (-want +got):\n%s", diff)
	}
}

func TestResultRoundTrip(t *testing.T) {
	for name, r := range map[string]Result{"small": small(), "not judged": {Schema: Schema, Runs: []Run{}, Summary: []Cell{}, Expect: []Verdict{}, NotJudged: []NotJudged{{"a", "b", "c"}}}, "empty": {Schema: Schema, Runs: []Run{}, Summary: []Cell{}, Expect: []Verdict{}}} {
		var b bytes.Buffer
		if err := r.Encode(&b); err != nil {
			t.Fatal(err)
		}
		got, err := Decode(&b)
		if diff := cmp.Diff(r, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestListsAreNeverNull(t *testing.T) {
	var b strings.Builder
	if err := (Result{Schema: Schema}).Encode(&b); err != nil || strings.Contains(b.String(), "null") {
		t.Errorf("an empty result is written as %s, %v", b.String(), err)
	}
}

func TestEncodeRefusesWhatIsNoResult(t *testing.T) {
	for _, tt := range []struct {
		spoil func(*Result)
		says  string
	}{
		{func(r *Result) { r.Runs[0].Metrics[Goodput] = math.NaN() }, "run 1.3 bi tcp: goodput_bps is NaN"},
		{func(r *Result) { r.Runs[0].Metrics[Goodput] = math.Inf(1) }, "goodput_bps is +Inf"},
		{func(r *Result) { r.Seconds = math.NaN() }, "seconds is NaN"},
		{func(r *Result) { r.Summary[0].CI95 = math.NaN() }, "summary 1.3 bi tcp bytes: ci95 is NaN"},
		{func(r *Result) { r.Runs[0].Metrics["trial"] = 1 }, `"trial" is not a name`},
		{func(r *Result) { r.Runs[0].Metrics["a b"] = 1 }, `"a b" is not a name`},
		{func(r *Result) { r.Runs[0].Notes = map[string]string{"": "x"} }, `"" is not a name`},
		{func(r *Result) { r.Runs[0].Notes = map[string]string{Goodput: "x"} }, "both a metric and a note"},
		{func(r *Result) { r.Runs[0].Trial = -1 }, "trial must be >= 0, got -1"},
	} {
		r := small()
		tt.spoil(&r)
		var b bytes.Buffer
		if err := r.Encode(&b); err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), `encode result "epe-steady"`) {
			t.Errorf("error is %v, want it to say %q", err, tt.says)
		}
		if b.Len() > 0 {
			t.Errorf("%d bytes are written before the error %q", b.Len(), tt.says)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	const whole = `{"schema":1,"scenario":"x","backend":"lab","seconds":1,"host":{"kernel":"6","cpus":2,"commit":"c"},` +
		`"runs":[{"case":"1","traffic":"bi","transport":"tcp","trial":0,"goodput_bps":1}],` +
		`"summary":[{"case":"1","traffic":"bi","transport":"tcp","metric":"m","n":1,"min":1,"q1":1,"median":1,"q3":1,"max":1,"mean":1,"ci95":0}],` +
		`"expect":[{"name":"n","want":"w","got":"g","holds":true}]}`
	if _, err := Decode(strings.NewReader(whole)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ old, new, says string }{
		{whole, "", "it ends in the middle, or is empty"},
		{whole, whole[:50], "it ends in the middle, or is empty"},
		{whole, "\x00", "it is not JSON: invalid character '\\x00' looking for beginning of value, at byte 1"},
		{`"cpus":2`, `"cpus":"2"`, `"host": "cpus": want a whole number, got string`},
		{`"runs":[{`, `"planned":1,"runs":[{`, `"planned" must be more than the 1 runs, got 1`},
		{whole, "[]", "is not an object"},
		{whole, "null", "is not an object"},
		{whole, whole + "{}", "after top-level value"},
		{`"schema":1`, `"schema":2`, "schema 2 is not supported"},
		{`"schema":1`, `"schema":"1"`, `"schema"`},
		{`"schema":1`, `"schema":1.5`, `"schema"`},
		{`"schema":1,`, ``, `key "schema" is missing`},
		{`"schema":1,`, `"schema":1,"schema":1,`, `"schema": key is given twice`},
		{`"schema"`, `"Schema"`, `"Schema": key is not known`},
		{`"scenario":"x"`, `"scenario":null`, `"scenario": must not be null`},
		{`"seconds":1`, `"seconds":1e999`, `"seconds"`},
		{`"cpus":2`, `"cpus":2,"gpus":1`, `"host": "gpus": key is not known`},
		{`"runs":[{`, `"runs":[null,{`, `"runs": is not an object`},
		{`"runs":[`, `"runs":{},"x":[`, `"runs"`},
		{`"trial":0,`, ``, `key "trial" is missing`},
		{`"trial":0`, `"trial":-1`, "trial must be >= 0, got -1"},
		{`"trial":0`, `"trial":0.5`, `"trial"`},
		{`"goodput_bps":1`, `"goodput_bps":true`, `"goodput_bps"`},
		{`"goodput_bps":1`, `"goodput_bps":null`, "must not be null"},
		{`"goodput_bps":1`, `"goodput_bps":[1]`, `"goodput_bps"`},
		{`"goodput_bps":1`, `"goodput_bps":1,"goodput_bps":"x"`, "key is given twice"},
		{`"goodput_bps":1`, `"Goodput":1`, `"Goodput" is not a name`},
		{`"n":1`, `"n":"1"`, `"n"`},
		{`"ci95":0`, `"ci95":0,"p99":1`, `"p99": key is not known`},
		{`"holds":true`, `"holds":1`, `"holds"`},
		{`"holds":true`, `"hold":true`, `"hold": key is not known`},
	} {
		text := strings.Replace(whole, tt.old, tt.new, 1)
		if _, err := Decode(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s for %s: error is %v, want it to say %q", tt.new, tt.old, err, tt.says)
		}
	}
}

func TestDecodeIsBounded(t *testing.T) {
	spaces := strings.NewReader(strings.Repeat(" ", MaxResult+1))
	if _, err := Decode(spaces); err == nil || !strings.Contains(err.Error(), "is larger than") {
		t.Errorf("error is %v", err)
	}
}

func TestSummarize(t *testing.T) {
	got := small().Summary
	var names []string
	for _, c := range got {
		names = append(names, c.CellKey.String()+" "+c.Metric)
	}
	want := []string{"1.3 bi tcp bytes", "1.3 bi tcp goodput_bps", "1.3 bi tcp limit_bps", "1.3 bi mptcp-epe goodput_bps"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("cells (-want +got):\n%s", diff)
	}
	if s := got[1].Summary; s.N != 2 || s.Median != 14_050_000 {
		t.Errorf("goodput of two trials is %+v", s)
	}
	if s := got[3].Summary; s.N != 1 || s.Median != 41_000_000.5 {
		t.Errorf("goodput beside a failed trial is %+v", s)
	}
	if _, err := Summarize([]Run{{Metrics: map[string]float64{Goodput: math.NaN()}}}); !errors.Is(err, stat.ErrNotFinite) {
		t.Errorf("NaN gives %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	var b bytes.Buffer
	if err := small().Encode(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(`{"schema":1,"runs":[{"case":"1","traffic":"","transport":"\ud800","trial":0,"x":-0,"y":1e-999}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Decode(bytes.NewReader(data))
		if err != nil {
			return
		}
		accessor.Call(t, r)
		var once, again bytes.Buffer
		if err := r.Encode(&once); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		text := once.String()
		back, err := Decode(&once)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v\n%s", err, text)
		}
		if err := back.Encode(&again); err != nil || again.String() != text {
			t.Errorf("%v; written twice differently (-once +again):\n%s", err, cmp.Diff(text, again.String()))
		}
	})
}
