package unit

import (
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

func TestParseBandwidth(t *testing.T) {
	for _, tt := range []struct {
		text  string
		want  Bandwidth
		print string
	}{
		{"30Mbit/s", 30 * MbitPerSecond, "30Mbit/s"},
		{"25.5Mbit/s", 25_500_000, "25.5Mbit/s"},
		{"25.50Mbit/s", 25_500_000, "25.5Mbit/s"},
		{"1Gbit/s", GbitPerSecond, "1Gbit/s"},
		{"1000Mbit/s", GbitPerSecond, "1Gbit/s"},
		{"1.5Tbit/s", 1_500_000_000_000, "1.5Tbit/s"},
		{"512kbit/s", 512_000, "512kbit/s"},
		{"9600bit/s", 9600, "9.6kbit/s"},
		{"999bit/s", 999, "999bit/s"},
		{"0bit/s", 0, "0bit/s"},
		{"0Gbit/s", 0, "0bit/s"},
		{"0.000001Mbit/s", 1, "1bit/s"},
		{"1.000000001Gbit/s", 1_000_000_001, "1.000000001Gbit/s"},
		{"9223372036854775807bit/s", math.MaxInt64, "9223372.036854775807Tbit/s"},
		{"9223372.036854775807Tbit/s", math.MaxInt64, "9223372.036854775807Tbit/s"},
	} {
		got, err := ParseBandwidth(tt.text)
		if err != nil || got != tt.want {
			t.Errorf("ParseBandwidth(%q) = %d, %v, want %d", tt.text, got, err, tt.want)
		}
		if got.String() != tt.print {
			t.Errorf("%q prints as %q, want %q", tt.text, got, tt.print)
		}
	}
}

func TestParseSize(t *testing.T) {
	for _, tt := range []struct {
		text  string
		want  Size
		print string
	}{
		{"100MB", 100 * MB, "100MB"},
		{"32KiB", 32768, "32KiB"},
		{"32768", 32768, "32KiB"},
		{"1500B", 1500, "1500B"},
		{"1500", 1500, "1500B"},
		{"1.5kB", 1500, "1500B"},
		{"1.5MiB", 1536 * KiB, "1536KiB"},
		{"0.25KiB", 256, "256B"},
		{"1024kB", 1024 * KB, "1024kB"},
		{"0", 0, "0B"},
		{"0GB", 0, "0B"},
		{"1TiB", TiB, "1TiB"},
		{"1PB", 0, ""},
		{"9223372036854775807", math.MaxInt64, "9223372036854775807B"},
	} {
		got, err := ParseSize(tt.text)
		if tt.print == "" {
			if err == nil {
				t.Errorf("ParseSize(%q) = %d, want an error", tt.text, got)
			}
			continue
		}
		if err != nil || got != tt.want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", tt.text, got, err, tt.want)
		}
		if got.String() != tt.print {
			t.Errorf("%q prints as %q, want %q", tt.text, got, tt.print)
		}
	}
}

func TestWrongTexts(t *testing.T) {
	for _, tt := range []struct{ text, says string }{
		{"", "is empty"},
		{"-1", "is negative"},
		{" 1", "contains a space"},
		{"1 ", "contains a space"},
		{"1\n", "contains a space"},
		{"+1", "does not start with a digit"},
		{"NaN", "does not start with a digit"},
		{"Inf", "does not start with a digit"},
		{"1e3", `unknown unit "e3"`},
		{"0x10", `unknown unit "x10"`},
		{"1_000", `unknown unit "_000"`},
		{"1,5", `unknown unit ",5"`},
		{"1Mbps", `unknown unit "Mbps"`},
		{"1mbit/s", `unknown unit "mbit/s"`},
		{"1Kbit/s", `unknown unit "Kbit/s"`},
		{"1KB", `unknown unit "KB"`},
		{"1mb", `unknown unit "mb"`},
		{"1.5", "has no unit"},
		{"٣", "does not start with a digit"},
	} {
		for name, parse := range map[string]func(string) error{
			"bandwidth": func(s string) error { _, err := ParseBandwidth(s); return err },
			"size":      func(s string) error { _, err := ParseSize(s); return err },
		} {
			err := parse(tt.text)
			if err == nil {
				t.Errorf("%s %q is accepted", name, tt.text)
				continue
			}
			if !errors.Is(err, ErrSyntax) || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), "; want a number and") {
				t.Errorf("%s %q: %q, want it to say %q and what is accepted", name, tt.text, err, tt.says)
			}
		}
	}
	for _, tt := range []struct{ text, says string }{
		{"30", "has no unit"},
		{"1 Mbit/s", "contains a space"},
		{".5Mbit/s", "malformed number"},
		{"5.Mbit/s", "malformed number"},
		{"1.2.3Mbit/s", "malformed number"},
		{".Mbit/s", "malformed number"},
		{"030Mbit/s", "leading zero"},
		{"0.5bit/s", "not a whole number"},
		{"1.0000001Mbit/s", "not a whole number"},
		{"9223372036854775808bit/s", "is larger than"},
		{"9223372036854776kbit/s", "is larger than"},
		{"9223372.036854775808Tbit/s", "is larger than"},
		{"99999999999999999999999bit/s", "is larger than"},
		{"1B", "unknown unit"},
	} {
		if _, err := ParseBandwidth(tt.text); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("ParseBandwidth(%q): %v, want it to say %q", tt.text, err, tt.says)
		}
	}
	for _, tt := range []struct{ text, says string }{
		{"0.3KiB", "not a whole number"},
		{"0.5B", "not a whole number"},
		{"007", "leading zero"},
		{"8388608TiB", "is larger than"},
		{"9223372036854775808", "is larger than"},
		{"1Mbit/s", "unknown unit"},
	} {
		if _, err := ParseSize(tt.text); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("ParseSize(%q): %v, want it to say %q", tt.text, err, tt.says)
		}
	}
}

func TestNegativeValuesPrintButDoNotMarshal(t *testing.T) {
	if got, want := Bandwidth(-1500).String(), "-1.5kbit/s"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
	if got, want := Bandwidth(math.MinInt64).String(), "-9223372.036854775808Tbit/s"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
	if got, want := Size(-1500).String(), "-1500B"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
	if _, err := json.Marshal(Bandwidth(-1)); err == nil {
		t.Error("a negative bandwidth marshals")
	}
	if _, err := json.Marshal(Size(-1)); err == nil {
		t.Error("a negative size marshals")
	}
}

func TestUnmarshalLeavesTheValueOnErrors(t *testing.T) {
	b, s := 7*KbitPerSecond, 7*KB
	if b.UnmarshalText([]byte("x")) == nil || s.UnmarshalText([]byte("x")) == nil {
		t.Error("nonsense is accepted")
	}
	if b != 7*KbitPerSecond || s != 7*KB {
		t.Errorf("values changed to %s and %s", b, s)
	}
}

func TestTimeForSizeInOver(t *testing.T) {
	for _, tt := range []struct {
		b    Bandwidth
		s    Size
		want time.Duration
	}{
		{30 * MbitPerSecond, 30 * MB, 8 * time.Second},
		{GbitPerSecond, 1500, 12 * time.Microsecond},
		{3, 1, 2_666_666_667},
		{MbitPerSecond, 0, 0},
		{MbitPerSecond, -1, 0},
		{0, 1, math.MaxInt64},
		{-1, 1, math.MaxInt64},
		{1, math.MaxInt64, math.MaxInt64},
		{math.MaxInt64, 1, 1},
	} {
		if got := tt.b.TimeFor(tt.s); got != tt.want {
			t.Errorf("%s.TimeFor(%s) = %d, want %d", tt.b, tt.s, got, tt.want)
		}
	}
	for _, tt := range []struct {
		b    Bandwidth
		d    time.Duration
		want Size
	}{
		{25 * MbitPerSecond, 30 * time.Second, 93_750_000},
		{15, time.Second, 1},
		{7, time.Second, 0},
		{-1, time.Second, 0},
		{1, -time.Second, 0},
		{math.MaxInt64, math.MaxInt64, math.MaxInt64},
	} {
		if got := tt.b.SizeIn(tt.d); got != tt.want {
			t.Errorf("%s.SizeIn(%s) = %d, want %d", tt.b, tt.d, got, tt.want)
		}
	}
	for _, tt := range []struct {
		s    Size
		d    time.Duration
		want Bandwidth
	}{
		{100 * MB, 10 * time.Second, 80 * MbitPerSecond},
		{1, 3 * time.Second, 2},
		{0, time.Second, 0},
		{1, 0, 0},
		{math.MaxInt64, 1, math.MaxInt64},
	} {
		if got := tt.s.Over(tt.d); got != tt.want {
			t.Errorf("%s.Over(%s) = %d, want %d", tt.s, tt.d, got, tt.want)
		}
	}
}

func TestPropertyBandwidthRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Bandwidth(rapid.Int64Min(0).Draw(t, "b"))
		text, err := json.Marshal(map[string]Bandwidth{"rate": b})
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]Bandwidth
		if err := json.Unmarshal(text, &got); err != nil || got["rate"] != b {
			t.Fatalf("%d prints as %s and reads as %d, %v", b, text, got["rate"], err)
		}
	})
}

func TestPropertySizeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Min(0).Draw(t, "n") / rapid.Int64Range(1, math.MaxInt64).Draw(t, "by")
		u := rapid.SampledFrom(sizeScales).Draw(t, "unit")
		if uint64(n) > math.MaxInt64/u.worth {
			n = 1
		}
		s := Size(n) * Size(u.worth)
		got, err := ParseSize(s.String())
		if err != nil || got != s {
			t.Fatalf("%d prints as %s and reads as %d, %v", s, s, got, err)
		}
	})
}

// What is parsed is what exact arithmetic says.
func TestPropertyParseIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.StringMatching(`(0|[1-9][0-9]{0,12})(\.[0-9]{1,14})?`).Draw(t, "number")
		u := rapid.SampledFrom(sizeScales).Draw(t, "unit")
		got, err := ParseSize(number + u.name)

		exact, ok := new(big.Rat).SetString(number)
		if !ok {
			t.Fatalf("%q is no number", number)
		}
		exact.Mul(exact, new(big.Rat).SetUint64(u.worth))
		fits := exact.IsInt() && exact.Num().IsInt64()
		if fits != (err == nil) || fits && exact.Num().Int64() != int64(got) {
			t.Fatalf("ParseSize(%s%s) = %d, %v, want %s", number, u.name, got, err, exact.RatString())
		}
	})
}

// A link never carries more within d than takes d, and what it carries within d plus one byte takes
// longer than d.
func TestPropertyTimeAndSizeAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Bandwidth(rapid.Int64Range(1, int64(10*TbitPerSecond)).Draw(t, "b"))
		d := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "d"))
		s := b.SizeIn(d)
		if b.TimeFor(s) > d || b.TimeFor(s+1) <= d {
			t.Fatalf("%s carries %s in %s, which take %s", b, s, d, b.TimeFor(s))
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"30Mbit/s", "25.5Mbit/s", "9600bit/s", "100MB", "32KiB", "1500", "", "-1", "1e9B", "0.3KiB", "..", "9223372.036854775808Tbit/s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if b, err := ParseBandwidth(s); err == nil {
			accessor.Call(t, b)
			if again, err := ParseBandwidth(b.String()); err != nil || again != b || b < 0 {
				t.Errorf("%q is %d, prints as %q, reads as %d, %v", s, b, b, again, err)
			}
		}
		if z, err := ParseSize(s); err == nil {
			accessor.Call(t, z)
			if again, err := ParseSize(z.String()); err != nil || again != z || z < 0 {
				t.Errorf("%q is %d, prints as %q, reads as %d, %v", s, z, z, again, err)
			}
		}
	})
}
