// Package unit parses and formats the quantities of configuration files: bandwidths and sizes.
//
// A text has exactly one meaning and a value exactly one text: units are case sensitive,
// fractions must come out as a whole number of bits per second or bytes, and nothing is rounded,
// trimmed or clamped. The package refuses negative amounts, exponents, spaces, and abbreviations
// that are read in two ways ("Mbps", "KB").
package unit

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// ErrSyntax is wrapped by all errors of parsing.
var ErrSyntax = errors.New("not understood")

// scale is a unit's text and its value.
type scale struct {
	name  string
	worth uint64
}

var (
	bandwidthScales = []scale{
		{"Tbit/s", 1e12}, {"Gbit/s", 1e9}, {"Mbit/s", 1e6}, {"kbit/s", 1e3}, {"bit/s", 1},
	}
	sizeScales = []scale{
		{"TB", 1e12}, {"TiB", 1 << 40}, {"GB", 1e9}, {"GiB", 1 << 30}, {"MB", 1e6}, {"MiB", 1 << 20},
		{"kB", 1e3}, {"KiB", 1 << 10}, {"B", 1},
	}
)

const (
	bandwidthHelp = `want a number and bit/s, kbit/s, Mbit/s, Gbit/s or Tbit/s, like "30Mbit/s"`
	sizeHelp      = `want a number and B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024), like "100MB"`
)

// Bandwidth is a rate in bits per second. Its user defines the layer.
type Bandwidth int64

// The bandwidths of which others are multiples.
const (
	BitPerSecond  Bandwidth = 1
	KbitPerSecond           = 1000 * BitPerSecond
	MbitPerSecond           = 1000 * KbitPerSecond
	GbitPerSecond           = 1000 * MbitPerSecond
	TbitPerSecond           = 1000 * GbitPerSecond
)

// ParseBandwidth reads a decimal number directly followed by bit/s, kbit/s, Mbit/s, Gbit/s or
// Tbit/s (powers of 1000), such as "25.5Mbit/s". The unit is never left out. The value must be a
// whole number of bits per second that fits an int64. Errors wrap ErrSyntax and say what is
// accepted.
func ParseBandwidth(s string) (Bandwidth, error) {
	v, err := parse(s, bandwidthScales)
	if err != nil {
		return 0, fmt.Errorf("bandwidth %q %w: %w; %s", s, ErrSyntax, err, bandwidthHelp)
	}
	return Bandwidth(v), nil
}

// String prints the exact value in the largest unit of which there is at least one: "30Mbit/s",
// "1.5Gbit/s".
func (b Bandwidth) String() string {
	sign, v := magnitude(int64(b))
	for _, s := range bandwidthScales {
		if v >= s.worth {
			return sign + decimal(v, s.worth) + s.name
		}
	}
	return "0bit/s"
}

// MarshalText prints b as String does. A negative bandwidth is an error, because no text stands for
// it.
func (b Bandwidth) MarshalText() ([]byte, error) {
	if b < 0 {
		return nil, fmt.Errorf("bandwidth %s is negative", b)
	}
	return []byte(b.String()), nil
}

// UnmarshalText reads what ParseBandwidth reads. b does not change on an error.
func (b *Bandwidth) UnmarshalText(text []byte) error {
	v, err := ParseBandwidth(string(text))
	if err != nil {
		return err
	}
	*b = v
	return nil
}

// TimeFor returns how long b takes to carry s, rounded up to the nanosecond. It is the longest
// time.Duration (292 years) when b is not positive or the time is longer still, and 0 when s is not
// positive.
func (b Bandwidth) TimeFor(s Size) time.Duration {
	if s <= 0 {
		return 0
	}
	if b <= 0 {
		return math.MaxInt64
	}
	hi, lo := bits.Mul64(uint64(s), 8*uint64(time.Second))
	lo, carry := bits.Add64(lo, uint64(b)-1, 0)
	return time.Duration(divSaturating(hi+carry, lo, uint64(b)))
}

// SizeIn returns how many whole bytes b carries within d: 0 when b or d is not positive, and the
// largest Size when it is more than that.
func (b Bandwidth) SizeIn(d time.Duration) Size {
	if b <= 0 || d <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(b), uint64(d))
	return Size(divSaturating(hi, lo, 8*uint64(time.Second)))
}

// Size is an amount of data in bytes.
type Size int64

// The sizes of which others are multiples.
const (
	Byte Size = 1
	KB        = 1000 * Byte
	MB        = 1000 * KB
	GB        = 1000 * MB
	TB        = 1000 * GB
	KiB       = 1024 * Byte
	MiB       = 1024 * KiB
	GiB       = 1024 * MiB
	TiB       = 1024 * GiB
)

// ParseSize reads a decimal number directly followed by B, kB, MB, GB, TB (powers of 1000) or KiB,
// MiB, GiB, TiB (powers of 1024), such as "1.5MiB". A whole number alone is a number of bytes:
// there is no other unit it could be meant in. The value must be a whole number of bytes that fits
// an int64. Errors wrap ErrSyntax and say what is accepted.
func ParseSize(s string) (Size, error) {
	text := s
	if s != "" && strings.Trim(s, "0123456789") == "" {
		text += "B"
	}
	v, err := parse(text, sizeScales)
	if err != nil {
		return 0, fmt.Errorf("size %q %w: %w; %s", s, ErrSyntax, err, sizeHelp)
	}
	return Size(v), nil
}

// String prints the exact value as the shortest whole number with a unit, powers of 1000 first:
// "100MB", "32KiB", "1500B".
func (s Size) String() string {
	sign, v := magnitude(int64(s))
	best := strconv.FormatUint(v, 10) + "B"
	digits := len(best) - 1
	for _, sc := range sizeScales {
		if v == 0 || v%sc.worth != 0 {
			continue
		}
		if n := strconv.FormatUint(v/sc.worth, 10); len(n) < digits {
			best, digits = n+sc.name, len(n)
		}
	}
	return sign + best
}

// MarshalText prints s as String does. A negative size is an error, because no text stands for it.
func (s Size) MarshalText() ([]byte, error) {
	if s < 0 {
		return nil, fmt.Errorf("size %s is negative", s)
	}
	return []byte(s.String()), nil
}

// UnmarshalText reads what ParseSize reads. s does not change on an error.
func (s *Size) UnmarshalText(text []byte) error {
	v, err := ParseSize(string(text))
	if err != nil {
		return err
	}
	*s = v
	return nil
}

// Over returns the bandwidth that carries s within d, rounded down to the bit per second: 0 when s
// or d is not positive, and the largest Bandwidth when it is more than that.
func (s Size) Over(d time.Duration) Bandwidth {
	if s <= 0 || d <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(s), 8*uint64(time.Second))
	return Bandwidth(divSaturating(hi, lo, uint64(d)))
}

// divSaturating returns hi:lo / y, or the largest int64 when the quotient is larger.
func divSaturating(hi, lo, y uint64) int64 {
	if hi >= y {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, y)
	return int64(min(q, math.MaxInt64))
}

// parse reads a number and one of the scales, in plain digits, exactly.
func parse(s string, scales []scale) (int64, error) {
	if s == "" {
		return 0, errors.New("is empty")
	}
	if s[0] == '-' {
		return 0, errors.New("is negative")
	}
	if strings.ContainsAny(s, " \t\r\n") {
		return 0, errors.New("contains a space")
	}
	end := 0
	for end < len(s) && (s[end] == '.' || s[end] >= '0' && s[end] <= '9') {
		end++
	}
	number, name := s[:end], s[end:]
	if number == "" {
		return 0, errors.New("does not start with a digit")
	}
	var worth uint64
	for _, sc := range scales {
		if sc.name == name {
			worth = sc.worth
		}
	}
	switch {
	case worth != 0:
	case name == "":
		return 0, errors.New("has no unit")
	default:
		return 0, fmt.Errorf("has the unknown unit %q", name)
	}

	whole, fraction, dotted := strings.Cut(number, ".")
	switch {
	case whole == "" || dotted && fraction == "" || strings.Contains(fraction, "."):
		return 0, fmt.Errorf("has the malformed number %q", number)
	case len(whole) > 1 && whole[0] == '0':
		return 0, errors.New("has a leading zero")
	}
	v, ok := digitsTimes(whole, worth)
	if !ok {
		return 0, errTooLarge
	}
	fraction = strings.TrimRight(fraction, "0")
	part := uint64(0)
	if fraction != "" {
		if part, ok = fractionTimes(fraction, worth); !ok {
			return 0, errors.New("is not a whole number of the smallest unit")
		}
	}
	if v > math.MaxInt64-part {
		return 0, errTooLarge
	}
	return int64(v + part), nil
}

var errTooLarge = fmt.Errorf("is larger than %d of the smallest unit", int64(math.MaxInt64))

// digitsTimes returns digits * worth, and false when it does not fit an int64.
func digitsTimes(digits string, worth uint64) (uint64, bool) {
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return 0, false
	}
	hi, lo := bits.Mul64(n, worth)
	return lo, hi == 0 && lo <= math.MaxInt64
}

// fractionTimes returns 0.digits * worth, and false when that is not a whole number. It works digit
// by digit from the right, so that no length of digits overflows: rest is what the digits so far
// add, as a fraction of worth with a numerator below worth, and must be divisible by 10 at every
// step.
func fractionTimes(digits string, worth uint64) (uint64, bool) {
	rest := uint64(0)
	for i := len(digits) - 1; i >= 0; i-- {
		v := rest + uint64(digits[i]-'0')*worth
		if v%10 != 0 {
			return 0, false
		}
		rest = v / 10
	}
	return rest, true
}

// decimal prints v/worth exactly; worth is a power of ten.
func decimal(v, worth uint64) string {
	s := strconv.FormatUint(v/worth, 10)
	if rest := v % worth; rest != 0 {
		places := len(strconv.FormatUint(worth, 10)) - 1
		s += "." + strings.TrimRight(fmt.Sprintf("%0*d", places, rest), "0")
	}
	return s
}

func magnitude(v int64) (sign string, abs uint64) {
	if v < 0 {
		return "-", uint64(-(v + 1)) + 1
	}
	return "", uint64(v)
}
