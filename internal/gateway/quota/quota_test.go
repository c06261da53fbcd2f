package quota

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/testkit/accessor"
)

func at(text string) time.Time {
	t, err := time.Parse("2006-01-02 15:04:05", text)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return t
}

func TestMonths(t *testing.T) {
	for _, tt := range []struct {
		day               int
		now, begins, ends string
	}{
		{0, "2026-11-28 23:59:59", "2026-11-01", "2026-12-01"},
		{1, "2026-12-01 00:00:00", "2026-12-01", "2027-01-01"},
		{1, "2028-02-29 12:00:00", "2028-02-01", "2028-03-01"},
		{15, "2027-01-14 23:59:59", "2026-12-15", "2027-01-15"},
		{15, "2027-01-15 00:00:00", "2027-01-15", "2027-02-15"},
		{28, "2027-03-01 00:00:00", "2027-02-28", "2027-03-28"},
	} {
		p := Plan{Day: tt.day}
		if begins, ends := p.month(at(tt.now)).Format(time.DateOnly), p.Ends(at(tt.now)).Format(time.DateOnly); begins != tt.begins || ends != tt.ends {
			t.Errorf("day %d, %s: from %s to %s, want %s to %s", tt.day, tt.now, begins, ends, tt.begins, tt.ends)
		}
	}
}

func TestLevels(t *testing.T) {
	for _, volume := range []unit.Size{1000, 20 * unit.GB, 1<<62 - 1} {
		p := Plan{Volume: volume}
		low := uint64(volume/5*4 + volume%5*4/5)
		for used, want := range map[uint64]Level{0: Fine, low - 2: Fine, low + 1: Low, uint64(volume) - 1: Low, uint64(volume): Spent, 1 << 63: Spent} {
			if got := p.Level(used); got != want {
				t.Errorf("%d of %d: %v, want %v", used, volume, got, want)
			}
		}
	}
}

// TestClock: what is carried while the clock is wrong is not lost for the month that it is.
func TestClock(t *testing.T) {
	type step struct {
		clock string
		bytes uint64
		used  uint64 // afterwards
	}
	for name, steps := range map[string][]step{
		"a month begins":                    {{"2026-11-30 23:59:59", 10, 10}, {"2026-12-01 00:00:00", 5, 5}, {"2026-12-31 00:00:00", 5, 10}},
		"behind at the start":               {{"1970-01-01 00:00:10", 10, 10}, {"2026-11-28 00:00:00", 5, 5}, {"1970-01-01 00:00:10", 2, 7}, {"2026-11-28 01:00:00", 1, 8}, {"1970-01-01 00:00:10", 2, 10}, {"2026-12-01 00:00:00", 1, 1}, {"1970-01-01 00:00:10", 2, 3}},
		"the time of the last file":         {{"2026-11-28 00:00:00", 10, 10}, {"2026-10-20 00:00:00", 5, 15}, {"2026-11-29 00:00:00", 1, 16}},
		"ahead for a while":                 {{"2026-11-28 00:00:00", 10, 10}, {"2099-01-01 00:00:00", 5, 5}, {"2026-11-28 02:00:00", 1, 16}, {"2099-01-01 00:00:00", 2, 8}, {"2026-11-28 03:00:00", 0, 18}},
		"ahead over the end of a month":     {{"2026-11-28 00:00:00", 10, 10}, {"2099-01-01 00:00:00", 5, 5}, {"2026-12-02 02:00:00", 1, 6}},
		"back over midnight, at the border": {{"2026-11-30 23:59:59", 10, 10}, {"2026-12-01 00:00:00", 1, 1}, {"2026-11-30 23:59:59", 1, 12}, {"2026-12-01 00:00:00", 1, 3}},
	} {
		var a Account
		for i, s := range steps {
			a.Add(Plan{Volume: 100}, at(s.clock), s.bytes)
			if a.Used() != s.used {
				t.Errorf("%s, step %d: %d used, want %d", name, i, a.Used(), s.used)
			}
		}
	}
}

// TestOtherDay: another day of the plan goes on with what was used.
func TestOtherDay(t *testing.T) {
	var a Account
	a.Add(Plan{Day: 1}, at("2026-11-28 00:00:00"), 10)
	a.Add(Plan{Day: 15}, at("2026-11-28 00:00:00"), 1)
	if a.Used() != 11 {
		t.Errorf("%d used, want 11", a.Used())
	}
	a.Add(Plan{Day: 15}, at("2026-12-15 00:00:00"), 1)
	if a.Used() != 1 {
		t.Errorf("%d used in the next month, want 1", a.Used())
	}
}

// TestPropertyNeverLess: whatever the clock shows after it was right once, a month has at least
// what was carried since the clock first showed it, and just that if the clock always was right.
// Before, a clock that was months ahead has the right one taken for one that is not set.
func TestPropertyNeverLess(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a Account
		p := Plan{Volume: unit.GB, Day: rapid.IntRange(1, MaxDay).Draw(t, "day")}
		now, month, carried, right := at("2026-11-03 00:00:00"), "", uint64(0), true
		a.Add(p, now, 0)
		wrong := rapid.SliceOfN(rapid.IntRange(-700, 700), 1, 3).Draw(t, "wrong clocks, in days")
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 200).Draw(t, "hours")) * time.Hour)
			bytes := rapid.Uint64Range(0, 1000).Draw(t, "bytes")
			carried += bytes
			clock := now
			if rapid.Bool().Draw(t, "wrong") {
				// A clock that is wrong is wrong in the same way, and does not follow the month.
				clock, right = at("2026-11-03 00:00:00").AddDate(0, 0, rapid.SampledFrom(wrong).Draw(t, "clock")), false
				a.Add(p, clock, bytes)
				continue
			}
			if begin := p.month(now).Format(time.DateOnly); begin != month {
				month, carried = begin, bytes
			}
			a.Add(p, clock, bytes)
			if used := a.Used(); used < carried || right && used != carried {
				t.Fatalf("%d used of %d that were carried (right: %t): %+v", used, carried, right, a)
			}
		}
	})
}

// TestReserve: an account that is kept beforehand has what is carried before it is kept again.
func TestReserve(t *testing.T) {
	var a Account
	p := Plan{Volume: 1000}
	a.Add(p, at("2026-11-28 00:00:00"), 100)
	kept := a.Reserve(50)
	a.Add(p, at("2026-11-28 00:00:00"), 50)
	if !reflect.DeepEqual(kept, a) {
		t.Errorf("%+v, want %+v", kept, a)
	}
}

func TestBook(t *testing.T) {
	var a Account
	a.Add(Plan{Day: 3}, at("2026-11-28 00:00:00"), 100)
	a.Add(Plan{Day: 3}, at("2026-10-28 00:00:00"), 100)
	book := Book{"lte": a, "empty": {}}
	text, err := book.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Decode(text); err != nil || !reflect.DeepEqual(got, book) {
		t.Errorf("%s: %+v, %v, want %+v", text, got, err, book)
	}
	for _, wrong := range []string{
		"", "[]", "{} {}", `{"lte": {"volume": 1}}`, `{"lte": {"day": 29}}`, `{"lte": {"months": [{"begin": "x"}]}}`,
		`{"lte": {"months": [{"begin": "2026-11-01", "bytes": 1, "ahead": 2}]}}`, `{"lte": {"months": [{"begin": "2026-11-01", "bytes": -1}]}}`,
		`{"lte": {"months": [{"begin": "2026-11-01", "bytes": 9223372036854775807}]}}`,
		`{"lte": {"months": [{"begin": "2026-11-01"}, {"begin": "2026-11-01"}]}}`,
	} {
		if book, err := Decode([]byte(wrong)); err == nil {
			t.Errorf("%s is %+v", wrong, book)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"lte":{"day":1,"months":[{"begin":"2026-10-01","bytes":7},{"begin":"2026-11-01","bytes":9,"ahead":3}]}}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		book, err := Decode(text)
		if err != nil {
			return
		}
		accessor.Call(t, book)
		for _, a := range book {
			a.Add(Plan{Volume: 100, Day: a.Day}, at("2026-11-28 00:00:00"), 1<<63)
			if err := a.check(); err != nil {
				t.Errorf("after more was carried: %v", err)
			}
		}
		again, err := book.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(again); err != nil {
			t.Errorf("decode what was encoded: %v", err)
		}
	})
}
