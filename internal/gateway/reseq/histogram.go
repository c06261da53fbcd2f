package reseq

import (
	"fmt"
	"iter"
	"math"
	"math/bits"
	"slices"
)

const (
	// fine is the number of significant bits of a bin: values up to 2^(fine+1) have a bin each,
	// the others are in bins with a relative width of at most 2^-fine.
	fine = 6
	span = 1 << fine
)

// Histogram is the distribution of whole numbers that are not negative, such as nanoseconds. Count,
// sum, least, largest and therefore mean and deviation are exact; quantiles have a relative error
// of at most 2^-7, 0.8 %. It needs 512 bytes for each doubling of the largest value. The zero value
// is empty. It is not safe for concurrent use.
type Histogram struct {
	// zeros counts zeros, the most frequent value, as most segments arrive in order. The other
	// fields are of values above 0.
	zeros   uint64
	count   uint64
	bins    []uint64
	least   int64
	largest int64
	sum, sq wide
}

// wide is an unsigned number of 128 bits.
type wide struct{ hi, lo uint64 }

func (w *wide) add(hi, lo uint64) {
	var carry uint64
	w.lo, carry = bits.Add64(w.lo, lo, 0)
	w.hi, _ = bits.Add64(w.hi, hi, carry)
}

func (w *wide) sub(hi, lo uint64) {
	var borrow uint64
	w.lo, borrow = bits.Sub64(w.lo, lo, 0)
	w.hi, _ = bits.Sub64(w.hi, hi, borrow)
}

// addProduct adds a times b.
func (w *wide) addProduct(a, b uint64) { w.add(bits.Mul64(a, b)) }

func (w wide) float() float64 { return float64(w.hi)*(1<<64) + float64(w.lo) }

// bin returns the index of the bin of a value.
func bin(v uint64) int {
	if v < 2*span {
		return int(v)
	}
	shift := bits.Len64(v) - fine - 1
	return shift<<fine + int(v>>shift)
}

// bounds are the least and the largest value of a bin.
func bounds(i int) (from, to uint64) {
	if i < 2*span {
		return uint64(i), uint64(i)
	}
	shift := i>>fine - 1
	from = uint64(span+i&(span-1)) << shift
	return from, from + 1<<shift - 1
}

// Add adds the value v. It panics if v is negative. The compiler inlines it.
func (h *Histogram) Add(v int64) {
	if v == 0 {
		h.zeros++
		return
	}
	h.add(v)
}

func (h *Histogram) add(v int64) {
	if v < 0 {
		panic(fmt.Sprintf("BUG: histogram of numbers from 0 is given %d", v))
	}
	i := bin(uint64(v))
	if i >= len(h.bins) {
		h.grow(i)
	}
	h.bins[i]++
	if v < h.least || h.count == 0 {
		h.least = v
	}
	h.largest = max(h.largest, v)
	h.count++
	h.sum.add(0, uint64(v))
	h.sq.addProduct(uint64(v), uint64(v))
}

// grow makes room for bin i and those up to the next doubling.
func (h *Histogram) grow(i int) {
	n := (i>>fine + 1) << fine
	h.bins = append(slices.Grow(h.bins, n-len(h.bins)), make([]uint64, n-len(h.bins))...)
}

// Merge adds all values of o.
func (h *Histogram) Merge(o *Histogram) {
	h.zeros += o.zeros
	if o.count == 0 {
		return
	}
	if len(o.bins) > len(h.bins) {
		h.grow(len(o.bins) - 1)
	}
	for i, n := range o.bins {
		h.bins[i] += n
	}
	if h.count == 0 || o.least < h.least {
		h.least = o.least
	}
	h.largest = max(h.largest, o.largest)
	h.count += o.count
	h.sum.add(o.sum.hi, o.sum.lo)
	h.sq.add(o.sq.hi, o.sq.lo)
}

// Count returns the number of values.
func (h *Histogram) Count() uint64 { return h.zeros + h.count }

// Min and Max return the smallest and the largest value; 0 if there is none.
func (h *Histogram) Min() int64 {
	if h.zeros > 0 {
		return 0
	}
	return h.least
}

// Max is documented with Min.
func (h *Histogram) Max() int64 { return h.largest }

// Sum is the sum of all values, exact up to 2^53 and with the error of a float64 above.
func (h *Histogram) Sum() float64 { return h.sum.float() }

// Mean is the mean of all values, and 0 when there is none.
func (h *Histogram) Mean() float64 {
	if h.count == 0 {
		return 0
	}
	return h.sum.float() / float64(h.Count())
}

// SD is the standard deviation of the sample (with n-1), and 0 when there are fewer than two
// values.
func (h *Histogram) SD() float64 {
	n := h.Count()
	if n < 2 || h.count == 0 {
		return 0
	}
	// n*sum(v^2) - sum(v)^2 in whole numbers, when they fit, so that nothing is lost where the
	// values hardly differ.
	if h.sum.hi == 0 {
		high, low := bits.Mul64(h.sq.lo, n)
		over, upper := bits.Mul64(h.sq.hi, n)
		upper, carry := bits.Add64(upper, high, 0)
		if over == 0 && carry == 0 {
			w := wide{upper, low}
			w.sub(bits.Mul64(h.sum.lo, h.sum.lo))
			return math.Sqrt(w.float() / float64(n) / float64(n-1))
		}
	}
	mean := h.Mean()
	return math.Sqrt(max(0, h.sq.float()-float64(n)*mean*mean) / float64(n-1))
}

// Quantile is the least value v such that at least the share p of all values, 0 <= p <= 1, is not
// larger than v: the middle of its bin, within Min and Max. It is 0 when there is no value.
func (h *Histogram) Quantile(p float64) int64 {
	if !(p >= 0 && p <= 1) {
		panic(fmt.Sprintf("BUG: quantile %g of a histogram", p))
	}
	want := max(1, uint64(math.Ceil(p*float64(h.Count()))))
	switch {
	case want >= h.Count():
		return h.largest
	case want <= h.zeros:
		return 0
	}
	seen := h.zeros
	for i, n := range h.bins {
		if seen += n; seen >= want {
			from, to := bounds(i)
			return min(max(int64(from+(to-from)/2), h.least), h.largest)
		}
	}
	return h.largest
}

// Bin is the number of values between From and To, both included.
type Bin struct {
	From, To int64
	Count    uint64
}

// Bins iterates over the bins that are not empty, in ascending order.
func (h *Histogram) Bins() iter.Seq[Bin] {
	return func(yield func(Bin) bool) {
		if h.zeros > 0 && !yield(Bin{Count: h.zeros}) {
			return
		}
		for i, n := range h.bins {
			if n == 0 {
				continue
			}
			from, to := bounds(i)
			if !yield(Bin{int64(from), int64(to), n}) {
				return
			}
		}
	}
}
